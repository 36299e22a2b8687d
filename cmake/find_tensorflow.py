"""Prints the installed TensorFlow's folder and version as a CMake list; fails without one."""

import importlib.metadata
import importlib.util
import re

spec = importlib.util.find_spec("tensorflow")
if spec is None or not spec.submodule_search_locations:
    raise SystemExit("No TensorFlow found.")
# The package's distribution has one of several names: tensorflow, tensorflow-cpu, ….
versions = {
    importlib.metadata.version(name)
    for name in importlib.metadata.packages_distributions()["tensorflow"]
    if name.startswith(("tensorflow", "tf"))
}
if len(versions) != 1:
    raise SystemExit(f"Expected one TensorFlow, found versions {sorted(versions)}.")
# tf.version.VERSION writes unreleased versions like this: 2.22.0-rc0, 2.23.0-dev20260101.
version = re.sub(r"\.?(rc|dev)(\d+)$", r"-\1\2", versions.pop())
print(spec.submodule_search_locations[0], version, sep=";", end="")
