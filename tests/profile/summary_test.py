"""What is said when measuring ends: not every row, but what came of it and what to do next."""

from __future__ import annotations

import io

from profile_values import (
    LARGE,
    SMALL,
    make_algorithm,
    make_algorithm_failure,
    make_profile,
    make_stage,
)
from rich.console import Console

from tf_interop.profile.summary import next_commands, show_summary
from tf_interop.profile.tables import describe_convolution
from tf_interop.profile.types import Profile

COLLECTED = {
    "batch": (1,),
    "inference": True,
    "training": False,
    "image_size": None,
    "target": None,
}


def _lines(profile: Profile) -> list[str]:
    console = Console(file=io.StringIO())
    show_summary(profile, "my profile.json", console)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_counts_what_was_measured_and_says_where_the_rest_is() -> None:
    lines = _lines(
        make_profile(
            make_algorithm(algorithm="FFT"),
            make_algorithm(algorithm="GEMM"),
            make_algorithm_failure(LARGE),
            make_stage((SMALL, "GEMM"), (LARGE, "GEMM"), latency_us=40.0, sequential_us=30.0),
        )
    )
    assert "Measured: 1 convolutions, with 2 algorithms in all, and 1 stages; 1 failed." in lines
    assert "No set of convolutions beat its sequence on this device." in lines
    assert "All of it: tf-interop profile show 'my profile.json'" in lines
    assert len(lines) < 6


def test_shows_each_set_that_wins_by_more_than_the_spread_once() -> None:
    times = {"spread_us": 1.0, "sequential_us": 30.0}
    lines = _lines(
        make_profile(
            make_stage((SMALL, "FFT"), (LARGE, "FFT"), latency_us=25.0, **times),
            make_stage((LARGE, "GEMM"), (SMALL, "GEMM"), latency_us=20.0, **times),
            make_stage((SMALL, "GEMM"), (SMALL, "GEMM"), latency_us=15.0, **times),
            make_stage((LARGE, "GEMM"), (LARGE, "GEMM"), latency_us=29.5, **times),
        )
    )
    rows = [line for line in lines if line.startswith("0: ")]
    assert [row.split()[-3:] for row in rows] == [
        ["15.0", "30.0", "2.00"],
        ["20.0", "30.0", "1.50"],
    ]
    assert describe_convolution(LARGE) in rows[1]
    assert not any("No set" in line for line in lines)


def test_shows_ten_sets_at_most() -> None:
    stages = [
        make_stage(*[(SMALL, "GEMM")] * count, latency_us=10.0, sequential_us=30.0)
        for count in range(2, 14)
    ]
    lines = _lines(make_profile(*stages))
    assert sum(line.startswith("0: ") for line in lines) == 10
    assert any(line.startswith("And 2 more sets. All of it:") for line in lines)


def test_a_profile_without_stages_says_nothing_of_them() -> None:
    assert not any("No set" in line for line in _lines(make_profile(make_algorithm())))


def test_next_is_to_plan_the_same_of_each_model() -> None:
    assert next_commands(["ResNet50"], "p.json", COLLECTED) == [
        "tf-interop plan ResNet50 --profile p.json -o plan.json"
    ]
    others = {
        "batch": (1, 8),
        "inference": False,
        "training": True,
        "image_size": (32, 64),
        "target": "9.0",
    }
    assert next_commands(["a.json", "b.json", "x:y"], "p.json", others) == [
        f"tf-interop plan {model} --profile p.json --batch 1,8 --no-inference --training "
        "--image-size 32x64 --for 9.0 -o plan.json"
        for model in ("MODEL", "x:y")
    ]
