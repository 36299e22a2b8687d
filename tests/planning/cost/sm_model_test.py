"""The model of SMs: alone as measured, together as resources and units allow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_interop.planning.cost.sm_model import ModelKernel, demands_of, model_stage_us
from tf_interop.profile.types import SmLimits
from tf_interop.stage import Lane, Stage, Step

LIMITS = SmLimits(registers=65536, shared_memory_bytes=233472, threads=2048, blocks=32)
SMS = 132

kernels = st.builds(
    ModelKernel,
    blocks=st.integers(1, 3000),
    registers=st.integers(1024, 65536),
    shared_memory_bytes=st.integers(0, 233472),
    threads=st.sampled_from([64, 128, 256, 512, 1024]),
    latency_us=st.floats(1, 1000),
    alu_utilization=st.none() | st.floats(0, 1),
    dram_utilization=st.none() | st.floats(0, 1),
)


def kernel(**changes: float | None) -> ModelKernel:
    """A kernel with four blocks to an SM, which fill all of them once."""
    usual = ModelKernel(
        blocks=4 * SMS,
        registers=16384,
        shared_memory_bytes=0,
        threads=128,
        latency_us=100,
        alu_utilization=0.4,
        dram_utilization=0.1,
    )
    return dataclasses.replace(usual, **changes)


def model_us(
    lanes: Sequence[Sequence[ModelKernel]],
    sm_counts: Sequence[int] = (0,) * 4,
    priorities: Sequence[int] = (0,) * 4,
) -> float:
    stage = Stage(
        tuple(
            Lane(tuple(map(Step, lane)), priority, sm_count)
            for lane, sm_count, priority in zip(lanes, sm_counts, priorities, strict=False)
        )
    )
    return model_stage_us(stage, LIMITS, SMS)


@settings(max_examples=200, deadline=None)
@given(kernels)
def test_a_kernel_alone_takes_what_was_measured(each: ModelKernel) -> None:
    assert model_us([[each]]) == pytest.approx(each.latency_us)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(kernels, min_size=1, max_size=2), min_size=2, max_size=3))
def test_lanes_take_no_less_than_the_longest_alone(lanes: list[list[ModelKernel]]) -> None:
    together = model_us(lanes)
    longest = max(sum(each.latency_us for each in lane) for lane in lanes)
    assert together >= longest * (1 - 1e-9)


@settings(max_examples=200, deadline=None)
@given(st.lists(kernels, min_size=1, max_size=4))
def test_is_never_faster_than_what_the_kernels_take_of_the_device(
    each: list[ModelKernel],
) -> None:
    together = model_us([[one] for one in each])
    demands = [demands_of(one, LIMITS, SMS) for one in each]
    for of_one_kind in zip(*demands, strict=True):
        assert together >= sum(of_one_kind) * (1 - 1e-6)


def test_kernels_on_different_sms_run_at_the_same_time() -> None:
    small = kernel(blocks=60, alu_utilization=None, dram_utilization=None)
    assert model_us([[small], [small]]) == pytest.approx(100)


def test_kernels_that_fill_the_registers_wait_for_each_other() -> None:
    assert model_us([[kernel()], [kernel()]]) == pytest.approx(200)


def test_kernels_that_leave_room_share_an_sm() -> None:
    half = kernel(blocks=2 * SMS, alu_utilization=0.4)
    assert model_us([[half], [half]]) == pytest.approx(100)


def test_arithmetic_units_that_are_asked_too_much_slow_both_down() -> None:
    half = kernel(blocks=2 * SMS, alu_utilization=0.75)
    assert model_us([[half], [half]]) == pytest.approx(150)


def test_dram_that_is_asked_too_much_slows_both_down() -> None:
    small = kernel(blocks=60, alu_utilization=0.1, dram_utilization=0.8)
    assert model_us([[small], [small]]) == pytest.approx(160)


def test_what_was_not_measured_is_taken_to_be_busy() -> None:
    half = kernel(blocks=2 * SMS, alu_utilization=None, dram_utilization=None)
    assert model_us([[half], [half]]) == pytest.approx(200)


def test_a_later_kernel_fills_what_the_last_wave_leaves() -> None:
    # Five blocks to an SM are one wave of four and one of one.
    waves = kernel(blocks=5 * SMS, latency_us=200, alu_utilization=0.3)
    filler = kernel(blocks=3 * SMS, alu_utilization=0.3)
    assert model_us([[waves], [filler]]) == pytest.approx(200)
    assert model_us([[filler], [waves]]) == pytest.approx(300, rel=0.35)


def test_priority_goes_before_launch_order() -> None:
    many_waves = kernel(blocks=40 * SMS)
    half = kernel(blocks=2 * SMS, latency_us=50, alu_utilization=0.1)
    lanes = [[many_waves], [half, half]]
    # The chain gets no SM until the last wave of the first lane has ended, or half of each at once.
    assert model_us(lanes) == pytest.approx(200)
    assert model_us(lanes, priorities=[0, -1]) == pytest.approx(150)


def test_partitions_keep_lanes_apart() -> None:
    together = model_us([[kernel()], [kernel()]], sm_counts=[66, 66])
    # Each has half the SMs, so twice the waves.
    assert together == pytest.approx(200)
    uneven = model_us([[kernel()], [kernel()]], sm_counts=[44, 0])
    assert uneven == pytest.approx(300)


def test_complementary_algorithms_beat_two_of_the_same() -> None:
    """The pair of the paper's Table 1: three blocks of one fill the registers, two leave room."""
    precomp = kernel(
        blocks=30 * SMS, registers=20096, shared_memory_bytes=30350, alu_utilization=0.7
    )
    tiling = kernel(blocks=30 * SMS, registers=8300, shared_memory_bytes=58368, alu_utilization=0.3)
    same = model_us([[precomp], [precomp]])
    different = model_us([[precomp], [tiling]], priorities=[0, -1])
    assert same > 190
    assert different < same


def test_says_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="fits on an SM"):
        model_us([[kernel(registers=70000)]])
    with pytest.raises(ValueError, match="132"):
        model_us([[kernel()], [kernel()]], sm_counts=[132, 0])
