"""A test that is a shell script.

Since Bazel 8, Bazel's own sh_test is in another repository, which would have to be downloaded.
"""

def _shell_test(ctx):
    script = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = script, target_file = ctx.file.src, is_executable = True)
    runfiles = ctx.runfiles(files = [ctx.file.src] + ctx.files.data)
    for target in ctx.attr.data:
        runfiles = runfiles.merge(target[DefaultInfo].default_runfiles)
    return [DefaultInfo(executable = script, runfiles = runfiles)]

shell_test = rule(
    implementation = _shell_test,
    attrs = {
        "data": attr.label_list(doc = "The files that it reads and runs.", allow_files = True),
        "src": attr.label(
            doc = "The script; it starts in the root of the workspace's runfiles.",
            allow_single_file = [".sh"],
            mandatory = True,
        ),
    },
    doc = "Runs a shell script with `args`; the test passes if the script exits with 0.",
    test = True,
)
