"""The paper's example as a planning problem: two layers, PRECOMP_GEMM and FFT_TILING for each.

Pourghassemi et al., SPAA 2020, Table 1: PRECOMP_GEMM takes 92 % of an SM's registers and 39 % of
its shared memory and keeps the ALUs busy for 70 % of the time; FFT_TILING takes 38 % and 75 %,
30 %, and waits for memory in 15 % of its stalls. No times and no device are known here: they are
made up.
"""

from __future__ import annotations

from tf_interop.planning.problem import (
    Candidate,
    ConvolutionCosts,
    MeasuredStage,
    PlanningProblem,
    ProblemNode,
)
from tf_interop.profile.entries import KernelMeasurement
from tf_interop.profile.types import SmLimits
from tf_interop.stage import Stage, Step

GEMM, FFT = "IMPLICIT_PRECOMP_GEMM", "FFT_TILING"
SM = SmLimits(registers=66783, shared_memory_bytes=98304, threads=2048, blocks=32)

GEMM_KERNEL = KernelMeasurement(
    name="precomp_gemm",
    grid=(240, 1, 1),
    block=(256, 1, 1),
    registers_per_thread=118,
    shared_memory_bytes=19200,
    time_share=1.0,
    alu_utilization=0.7,
)
FFT_KERNEL = KernelMeasurement(
    name="fft_tiling",
    grid=(240, 1, 1),
    block=(320, 1, 1),
    registers_per_thread=40,
    shared_memory_bytes=36864,
    time_share=1.0,
    alu_utilization=0.3,
    memory_stall=0.15,
)


def paper_problem() -> PlanningProblem:
    """Two independent layers, and the four stages that they can be, measured."""
    candidates = (
        Candidate(GEMM, 100.0, 1 << 20, 1.0, (GEMM_KERNEL,)),
        Candidate(FFT, 105.0, 2 << 20, 1.0, (FFT_KERNEL,)),
    )
    together_us = {(GEMM, GEMM): 190.0, (GEMM, FFT): 130.0, (FFT, GEMM): 132.0, (FFT, FFT): 185.0}
    return PlanningProblem(
        costs=tuple(ConvolutionCosts(name, 1 << 20, candidates) for name in ("3x3", "5x5")),
        nodes=(ProblemNode("layer_3x3", "3x3"), ProblemNode("layer_5x5", "5x5")),
        stages=tuple(
            MeasuredStage(
                Stage.side_by_side(map(Step, ("3x3", "5x5"), algorithms)),
                latency_us,
                200.0,
                2.0,
                3 << 20,
            )
            for algorithms, latency_us in together_us.items()
        ),
        sm_count=60,
        sm_limits=SM,
        fingerprint="0123456789abcdef",
        convolution_count=3,
        batch_size=8,
    )
