"""Profiles: the keys of entries, the lookup of algorithms, and determinism."""

from __future__ import annotations

import dataclasses

from profile_values import (
    BACKWARD,
    LARGE,
    SMALL,
    WIDER,
    make_algorithm,
    make_profile,
    make_stage,
    make_stage_failure,
)

from tf_interop.profile.entries import entry_key

MERGING = {"lanes": (0, 0), "merged": (True,)}


def test_the_key_of_a_stage_is_the_request() -> None:
    stage = make_stage((SMALL, None), priorities=(1,))
    assert entry_key(stage) == entry_key(make_stage_failure((SMALL, None), priorities=(1,)))
    assert entry_key(stage) != entry_key(make_stage((SMALL, None), priorities=(2,)))
    assert entry_key(stage) != entry_key(dataclasses.replace(stage, tf32=False))
    pair = ((SMALL, "FFT"), (SMALL, "FFT"))
    merged = make_stage(*pair, **MERGING)
    assert entry_key(merged) != entry_key(make_stage(*pair, lanes=(0, 0)))
    assert entry_key(merged) == entry_key(make_stage_failure(*pair, **MERGING))


def test_finds_algorithms_under_the_switch_for_tf32_fastest_first() -> None:
    rounding = make_algorithm(algorithm="GEMM", latency_us=20.0, tf32=True)
    exact = make_algorithm(algorithm="GEMM", latency_us=10.0, tf32=False)
    engine = make_algorithm(algorithm="eng1", latency_us=15.0, tf32=False)
    profile = make_profile(rounding, make_algorithm(LARGE, latency_us=1.0), exact, engine)
    # GEMM rounds if it may, even if it would be faster otherwise.
    assert profile.find_algorithms(SMALL) == (engine, rounding)
    assert profile.find_algorithms(SMALL, allow_tf32=False) == (exact, engine)
    assert profile.find_algorithms(BACKWARD) == ()


def test_the_deterministic_part_gives_the_same_bits() -> None:
    same, other = make_algorithm(algorithm="GEMM"), make_algorithm(LARGE, "GEMM")
    wide = dataclasses.replace(SMALL, filter_shape=(1, 1, 16, 80), output_shape=(8, 28, 28, 80))
    changing = dataclasses.replace(make_algorithm(algorithm="FFT"), deterministic=False)
    kept = (
        make_stage((SMALL, "GEMM"), (LARGE, "GEMM")),
        make_stage((SMALL, "GEMM"), (WIDER, "GEMM"), **MERGING),
    )
    profile = make_profile(
        *(same, other, changing, make_algorithm(wide, "GEMM")),
        *kept,
        make_stage((SMALL, "FFT"), (LARGE, "GEMM")),
        make_stage((SMALL, None), (LARGE, "GEMM")),
        make_stage((SMALL, "DIRECT"), (WIDER, "DIRECT"), **MERGING),
    )
    assert profile.deterministic_part.stages == kept
    assert changing not in profile.deterministic_part.algorithms
