#!/usr/bin/env python3
"""Draws docs/pictures/report.png and report_cpu.png.

The first is GoogLeNet, planned for a GPU that does not exist. The graph is TensorFlow's for a GPU
at batch size 1, and the plan is the planner's. The cost of each convolution is made up, for no
device; the plan says so, and the picture shows it. The second is MobileNetV2, tuned on this
machine's CPU. Needs the extra `dev`, and Chromium.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import dataclasses
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

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
# Made-up algorithms: multiply-adds per µs on a full GPU, outputs per block, registers per thread,
# shared memory per block, ALU utilization, memory stall, workspace bytes per output of the
# convolution, and the heights of the filters that it supports.
KERNELS = {
    "IMPLICIT_PRECOMP_GEMM": (4.0e6, 2048, 118, 19200, 0.70, 0.03, 1, (1, 3, 5, 7)),
    "GEMM": (3.6e6, 4096, 64, 40960, 0.45, 0.12, 6, (1, 3, 5, 7)),
    "IMPLICIT_GEMM": (3.1e6, 2048, 48, 12288, 0.55, 0.08, 0, (1, 3, 5, 7)),
    "FFT_TILING": (3.9e6, 4096, 40, 36864, 0.30, 0.15, 24, (3, 5, 7)),
    "WINOGRAD_NONFUSED": (4.6e6, 4096, 96, 33792, 0.60, 0.10, 16, (3,)),
}


def simulated_algorithms(
    configuration: ConvolutionConfiguration,
) -> Iterator[AlgorithmMeasurement]:
    """Costs of the algorithms for a convolution, computed from its size alone."""
    assert configuration.filter_shape is not None and configuration.output_shape is not None
    outputs = math.prod(size or 1 for size in configuration.output_shape)
    for algorithm, (
        speed, tile, registers, shared_memory, alu_utilization, memory_stall, workspace, heights,
    ) in KERNELS.items():  # fmt: skip
        if configuration.filter_shape[0] not in heights:
            continue
        blocks = max(1, math.ceil(outputs / tile))
        share_of_sms = min(1.0, max(blocks / DEVICE.sm_count, 0.25))
        latency_us = 5.0 + multiply_adds(configuration) / speed / share_of_sms
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


def run(words: str, folder: pathlib.Path) -> None:
    """Runs a command of tf-interop in a folder."""
    subprocess.run([sys.executable, "-m", "tf_interop", *words.split()], check=True, cwd=folder)


def plan_for_a_gpu(plan_path: pathlib.Path) -> None:
    """Plans GoogLeNet from made-up costs."""
    options = tf_interop.CollectOptions(compute_capability=CAPABILITY, stage_sources=())
    collected = tf_interop.collect_configurations([MODEL], options)
    listed = collected.configurations.convolutions
    costs = tuple(cost for each in listed for cost in simulated_algorithms(each.configuration))
    plan = tf_interop.plan(
        googlenet(), Profile(DEVICE, costs), target=CAPABILITY, memory_budget_bytes=64 << 20
    )
    plan = dataclasses.replace(plan, made_with=plan.made_with | {"simulated": SIMULATED})
    tf_interop.save_plan(plan, plan_path)


def take_picture(page_path: pathlib.Path, name: str, height: int) -> None:
    """Takes a picture of a page's first view."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("Chromium is missing. On Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": height})
        page.goto(page_path.as_uri())
        page.screenshot(path=str(ROOT / "docs" / "pictures" / name))
        browser.close()


def main(folder: pathlib.Path) -> None:
    """Makes plans and reports, and takes the pictures."""
    plan, page = folder / "plan.json", folder / "report.html"
    plan_for_a_gpu(plan)
    with_model = f"--model {MODEL} --for {CAPABILITY} --title GoogLeNet"
    run(f"report {plan} {with_model} -o {page}", ROOT)
    take_picture(page, "report.png", height=1660)
    run(f"tune MobileNetV2 --fresh -o {plan.name}", folder)
    run(f"report {plan.name} --title MobileNetV2 -o {page.name}", folder)
    take_picture(page, "report_cpu.png", height=720)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(pathlib.Path(name))
