#!/usr/bin/env python3
"""Draws the picture of docs/reading_a_report.md: GoogLeNet, planned for a GPU that does not exist.

The graph is that of the network at batch size 1, as TensorFlow makes it for a GPU, and the plan is
the planner's. What each convolution costs is made up by `simulated_algorithms` and says nothing of
any device; the plan says so, and the picture shows it. Needs the extra `dev`, and Chromium.

Example: python scripts/draw_report_pictures.py docs/pictures
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import contextlib
import dataclasses
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import click
from playwright.sync_api import sync_playwright

# The models, and the values of tests, are in the checkout, which is not on Python's path.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

from profile_values import GPU, HOPPER_SM, KERNEL, make_algorithm

import tf_interop
from python.models.googlenet import googlenet
from tf_interop.convolution import ConvolutionConfiguration, multiply_adds
from tf_interop.profile.entries import AlgorithmMeasurement
from tf_interop.profile.types import Profile

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = "python.models.googlenet:googlenet"
CAPABILITY = "9.0"
SIMULATED = "times and kernels are made up by scripts/draw_report_pictures.py, for no device."
DEVICE = dataclasses.replace(
    GPU,
    name="none (simulated)",
    sm_count=64,
    sm_limits=dataclasses.replace(HOPPER_SM, shared_memory_bytes=102400),
    **dict.fromkeys(("cudnn", "driver", "cuda"), ""),
    clocks_mhz={},
)


# Of each algorithm, all of it made up: multiply-adds in a microsecond where it fills the GPU,
# outputs of one block, registers per thread, shared memory per block, ALU utilization, memory
# stall, workspace bytes per output of the convolution, and the heights of filters that it is for.
KERNELS = {
    "IMPLICIT_PRECOMP_GEMM": (4.0e6, 2048, 118, 19200, 0.70, 0.03, 1, (1, 3, 5, 7)),
    "GEMM": (3.6e6, 4096, 64, 40960, 0.45, 0.12, 6, (1, 3, 5, 7)),
    "IMPLICIT_GEMM": (3.1e6, 2048, 48, 12288, 0.55, 0.08, 0, (1, 3, 5, 7)),
    "FFT_TILING": (3.9e6, 4096, 40, 36864, 0.30, 0.15, 24, (3, 5, 7)),
    "WINOGRAD_NONFUSED": (4.6e6, 4096, 96, 33792, 0.60, 0.10, 16, (3,)),
}


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(file_okay=False, path_type=pathlib.Path))
def main(folder: pathlib.Path) -> None:
    """Makes the profile, the plan, the report and its picture."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        temporary = pathlib.Path(name)
        save_plan_of_the_model(temporary)
        words = f"report {name}/plan.json --model {MODEL} --for {CAPABILITY} -o {name}/report.html"
        title = ["--title", "GoogLeNet, inference"]
        command = [sys.executable, "-m", "tf_interop", *words.split(), *title]
        subprocess.run(command, check=True, cwd=ROOT)
        photograph(temporary / "report.html", folder / "report.png", 1280, 1660)


def save_plan_of_the_model(folder: pathlib.Path) -> None:
    """Writes `plan.json` of the model to a folder."""
    options = tf_interop.CollectOptions(compute_capability=CAPABILITY, stage_sources=())
    collected = tf_interop.collect_configurations([MODEL], options)
    profile = Profile(
        DEVICE,
        tuple(
            measurement
            for each in collected.configurations.convolutions
            for measurement in simulated_algorithms(each.configuration)
        ),
    )
    plan = tf_interop.plan(googlenet(), profile, target=CAPABILITY, memory_budget_bytes=64 << 20)
    plan = dataclasses.replace(plan, made_with=plan.made_with | {"simulated": SIMULATED})
    tf_interop.save_plan(plan, folder / "plan.json")


def simulated_algorithms(
    configuration: ConvolutionConfiguration,
) -> Iterator[AlgorithmMeasurement]:
    """What the algorithms for a convolution might take, by nothing but its size."""
    assert configuration.filter_shape is not None and configuration.output_shape is not None
    height = configuration.filter_shape[0]
    outputs = math.prod(size or 1 for size in configuration.output_shape)
    work = multiply_adds(configuration)
    for algorithm, (
        speed, tile, registers, shared_memory, alu_utilization, memory_stall, workspace, heights,
    ) in KERNELS.items():  # fmt: skip
        if height not in heights:
            continue
        blocks = max(1, math.ceil(outputs / tile))
        # Few blocks leave SMs idle.
        filled = min(1.0, blocks / DEVICE.sm_count)
        latency_us = 5.0 + work / speed / max(filled, 0.25)
        kernel = dataclasses.replace(
            KERNEL,
            name=f"simulated_{algorithm.lower()}",
            grid=(blocks, 1, 1),
            registers_per_thread=registers,
            shared_memory_bytes=shared_memory,
            alu_utilization=alu_utilization,
            memory_stall=memory_stall,
        )
        measured = make_algorithm(
            configuration,
            algorithm,
            tf32=False,
            latency_us=latency_us,
            spread_us=0.01 * latency_us,
            workspace_bytes=outputs * workspace,
            kernels=(kernel,),
        )
        yield dataclasses.replace(measured, source=SIMULATED)


def photograph(page: pathlib.Path, picture: pathlib.Path, width: int, height: int) -> None:
    """Takes a picture of a page as it first shows."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("Expected Chromium, found none. On Debian: apt-get install chromium")
    with (
        sync_playwright() as playwright,
        contextlib.closing(
            playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        ) as browser,
    ):
        tab = browser.new_page(viewport={"width": width, "height": height})
        tab.goto(page.as_uri())
        tab.screenshot(path=str(picture))


if __name__ == "__main__":
    main()
