"""Tables of profiles, printed without a terminal."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from typing import Any

import pytest
from profile_values import (
    EVERY_KIND_OF_ENTRY,
    GPU,
    LARGE,
    SMALL,
    make_algorithm,
    make_algorithm_failure,
    make_profile,
    make_stage,
    make_stage_failure,
)
from rich.console import Console

from tf_interop.profile.entries import Entry
from tf_interop.profile.tables import describe_convolution, show_profile, show_summary
from tf_interop.profile.types import ProfiledDevice

LONG_NAME = "pad+split+nchw+eng11_k2=1_k3=0_k24=15_sms=66"


def printed(show: Callable[..., None], *arguments: object) -> list[str]:
    """The lines in a file that is not a terminal."""
    console = Console(file=io.StringIO())
    show(*arguments, console)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def shown(*entries: Entry, device: ProfiledDevice = GPU) -> list[str]:
    return printed(show_profile, make_profile(*entries, device=device))


def summary(*entries: Entry) -> list[str]:
    return printed(show_summary, make_profile(*entries), "my profile.json")


def row(lines: list[str], start: str) -> list[str]:
    """The words after the start of a line."""
    line = next(line for line in lines if line.strip().startswith(start))
    return line.strip().removeprefix(start).split()


def test_fits_100_columns_and_is_plain_text() -> None:
    lines = shown(
        *EVERY_KIND_OF_ENTRY,
        make_algorithm(LARGE, LONG_NAME, latency_us=123456.7, workspace_bytes=3 << 40),
        make_stage((LARGE, LONG_NAME), priorities=(-1,)),
    )
    assert len(lines) > 10
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in "".join(lines)


def test_shows_the_fastest_algorithm_of_each_convolution() -> None:
    lines = shown(
        make_algorithm(algorithm="FFT", latency_us=30.0),
        make_algorithm(algorithm="GEMM", latency_us=12.5, spread_us=0.5, workspace_bytes=2000),
        make_algorithm_failure(algorithm="DIRECT"),
        make_algorithm_failure(algorithm="WINOGRAD"),
        make_algorithm_failure(LARGE),
    )
    small = row(lines, describe_convolution(SMALL))
    assert small == ["12.5", "0.5", "2.0", "kB", "2", "2", "unsupported"]
    assert "  GEMM (TF32)" in lines
    assert row(lines, describe_convolution(LARGE)) == ["–", "–", "–", "0", "1", "unsupported"]


def test_shows_stages_with_their_ratio_and_whether_they_win() -> None:
    times = {"sequential_us": 30.0, "spread_us": 1.0}
    lines = shown(
        make_stage((SMALL, "GEMM"), latency_us=20.0, **times),
        make_stage((LARGE, "GEMM"), latency_us=29.5, **times),
        make_stage_failure((SMALL, "FFT")),
        make_stage((SMALL, "FFT"), (SMALL, "FFT"), lanes=(0, 0), merged=(True,)),
        make_stage(
            *((SMALL, "GEMM"), (LARGE, "FFT"), (SMALL, "FFT")),
            priorities=(0, -1, 1),
        ),
    )
    options = [line for line in lines if line.startswith("lane ")]
    assert options == ["lane 1: priority -1", "lane 2: priority 1"]
    assert sum("merged into a wider convolution: 0" in line for line in lines) == 1
    rows = [line.split()[-6:] for line in lines if line.startswith("0: ")]
    assert rows[0] == ["20.0", "32.0", "30.0", "1.0", "1.50", "yes"]
    assert rows[1] == ["29.5", "32.0", "30.0", "1.0", "1.02", "no"]
    assert any("failed: Expected the pinned algorithm" in line for line in lines)


def test_shows_the_device() -> None:
    text = " ".join(shown())
    for part in ("NVIDIA H200", "9.0", "132 SMs", "cuDNN 9.10.2", "570.86.15", "sm 1980 MHz"):
        assert part in text
    # NVML may be missing.
    text = " ".join(shown(device=dataclasses.replace(GPU, driver="", clocks_mhz={})))
    assert "cuDNN 9.10.2, CUDA 12.8; 2026-11-20" in text


def test_the_summary_counts_and_names_the_file() -> None:
    times = {"spread_us": 1.0, "sequential_us": 30.0}
    pair = ((SMALL, "GEMM"), (LARGE, "GEMM"))
    lines = summary(
        *(make_algorithm(), make_algorithm_failure(LARGE)),
        *(make_stage(*pair[:count], latency_us=us, **times) for count, us in ((1, 29.5), (2, 20))),
    )
    assert "Measured: 1 convolution, with 1 algorithm in all, and 2 stages; 1 failed." in lines
    assert any(line.startswith("1 of 2 stages ran faster") for line in lines)
    assert lines[-1] == "To see everything: tf-interop show 'my profile.json'"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "forward 8x28x28x16 * 1x1x16x32 NHWC float32"),
        (
            {"strides": (2, 2), "dilations": (1, 2), "padding": "VALID"},
            "forward 8x28x28x16 * 1x1x16x32 /2 dilated 1x2 VALID NHWC float32",
        ),
        (
            {
                "padding": "EXPLICIT",
                "explicit_paddings": (1, 2, 3, 4),
                "fused_ops": ("BiasAdd", "Relu"),
                "dtype": "float16",
            },
            "forward 8x28x28x16 * 1x1x16x32 padded 1,2,3,4 NHWC float16 +BiasAdd +Relu",
        ),
        (
            {"depthwise": True, "image_shape": (None, 28, 28, 16)},
            "forward depthwise ?x28x28x16 * 1x1x16x32 NHWC float32",
        ),
    ],
)
def test_describes_a_convolution(changes: dict[str, Any], expected: str) -> None:
    assert describe_convolution(dataclasses.replace(SMALL, **changes)) == expected
