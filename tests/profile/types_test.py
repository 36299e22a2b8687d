"""Profiles: what tells entries apart, the lookup of measurements, and what counts as a win."""

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


def test_a_stage_is_told_by_what_was_asked_for() -> None:
    granted = make_stage((SMALL, None), sm_counts=(66,), granted_sm_counts=(72,))
    assert entry_key(granted) == entry_key(make_stage_failure((SMALL, None), sm_counts=(66,)))
    assert entry_key(granted) != entry_key(make_stage((SMALL, None), sm_counts=(72,)))
    assert entry_key(granted) != entry_key(dataclasses.replace(granted, tf32=False))


def test_what_is_merged_is_another_stage() -> None:
    pair = ((SMALL, "FFT"), (SMALL, "FFT"))
    apart = make_stage(*pair, lanes=(0, 0))
    merged = make_stage(*pair, lanes=(0, 0), merged=(True,))
    assert len(make_profile(apart, merged).stages) == 2
    failure = make_stage_failure(*pair, lanes=(0, 0), merged=(True,))
    assert make_profile(merged, failure).entries == (failure,)


def test_finds_what_algorithms_cost_under_the_switch_for_tf32_fastest_first() -> None:
    rounding = make_algorithm(algorithm="GEMM", latency_us=20.0, tf32=True)
    exact = make_algorithm(algorithm="GEMM", latency_us=10.0, tf32=False)
    engine = make_algorithm(algorithm="eng1", latency_us=15.0, tf32=False)
    profile = make_profile(rounding, make_algorithm(LARGE, latency_us=1.0), exact, engine)
    # GEMM rounds where it may, however fast it is where it may not.
    assert profile.find_algorithms(SMALL) == (engine, rounding)
    assert profile.find_algorithms(SMALL, allow_tf32=False) == (exact, engine)
    assert profile.find_algorithms(BACKWARD) == ()


def test_only_what_gives_the_same_bits_is_deterministic() -> None:
    same, other = make_algorithm(algorithm="GEMM"), make_algorithm(LARGE, "GEMM")
    wide = dataclasses.replace(SMALL, filter_shape=(1, 1, 16, 80), output_shape=(8, 28, 28, 80))
    changing = dataclasses.replace(make_algorithm(algorithm="FFT"), deterministic=False)
    merging = {"lanes": (0, 0), "merged": (True,)}
    kept = (
        make_stage((SMALL, "GEMM"), (LARGE, "GEMM")),
        make_stage((SMALL, "GEMM"), (WIDER, "GEMM"), **merging),
    )
    profile = make_profile(
        *(same, other, changing, make_algorithm(wide, "GEMM")),
        *kept,
        make_stage((SMALL, "FFT"), (LARGE, "GEMM")),
        make_stage((SMALL, None), (LARGE, "GEMM")),
        make_stage((SMALL, "DIRECT"), (WIDER, "DIRECT"), **merging),
    )
    assert profile.deterministic_part.stages == kept
    assert changing not in profile.deterministic_part.algorithms
