"""The values of a benchmark: cases, variants and blocks.

A *case* is a network, a mode, a batch size and a precision, or a program. A *variant* is a way to
run it. One process measures one *block* of one variant of one case. The variants of a case take
turns.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import statistics
from typing import Annotated

import msgspec

from tf_interop.errors import BenchmarkError
from tf_interop.profile.types import ProfiledDevice
from tf_interop.versioned_file import VersionedFormat

Count = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(gt=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class Variant(enum.Enum):
    """A way to run a model, as docs/benchmark.md describes it."""

    STOCK = "stock"
    FROZEN = "frozen"
    ENABLED = "enabled"
    OURS = "ours"
    PINNING = "pinning"
    CONCURRENCY = "concurrency"
    INTRA_ONE = "intra-1"
    INTER_ONE = "inter-1"
    XLA = "xla"
    XLA_ENABLED = "xla-enabled"
    XLA_OURS = "xla-ours"
    TFLITE = "tflite"
    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"

    @property
    def needs_plan(self) -> bool:
        """Whether it runs with a plan."""
        return self in (Variant.OURS, Variant.PINNING, Variant.CONCURRENCY, Variant.XLA_OURS)

    @property
    def is_compiled_by_xla(self) -> bool:
        """Whether XLA compiles the step."""
        return self in (Variant.XLA, Variant.XLA_ENABLED, Variant.XLA_OURS)

    @property
    def is_other_runtime(self) -> bool:
        """Whether another runtime than TensorFlow's own runs the model, on the CPU."""
        return self in (Variant.TFLITE, Variant.ONNXRUNTIME, Variant.OPENVINO)

    @property
    def is_checked(self) -> bool:
        """Whether its outputs are compared with stock's before it is timed."""
        changed = (Variant.FROZEN, Variant.ENABLED, Variant.OURS)
        compiled = (Variant.XLA_ENABLED, Variant.XLA_OURS)
        return self in (*changed, *compiled) or self.is_other_runtime

    def can_run(self, case: Case) -> bool:
        """Whether it can run a case: a frozen function does not train, nor do other runtimes.

        Those also compute in float32 only, but for OpenVINO, which takes bfloat16.
        """
        if case.is_program:
            return self in (Variant.STOCK, Variant.OURS)
        narrow = (Precision.BFLOAT16,) if self is Variant.OPENVINO else ()
        precisions = (Precision.FLOAT32, Precision.TF32, *narrow)
        if self.is_other_runtime and case.precision not in precisions:
            return False
        is_for_inference = self is Variant.FROZEN or self.is_other_runtime
        return case.mode is Mode.INFERENCE or not is_for_inference


class Mode(enum.Enum):
    """Inference, or one step of training with SGD."""

    INFERENCE = "inference"
    TRAINING = "training"


class Precision(enum.Enum):
    """The number format of convolutions; the first two differ in TensorFlow's switch for TF32."""

    FLOAT32 = "float32"
    TF32 = "tf32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def keras_policy(self) -> str | None:
        """Keras' dtype policy; None for its default."""
        return f"mixed_{self.value}" if self.value.endswith("16") else None

    def computed_on(self, device: ProfiledDevice) -> Precision:
        """The precision that a device uses instead: a CPU has no TF32."""
        return Precision.FLOAT32 if self is Precision.TF32 and device.backend == "host" else self


class FailureKind(enum.Enum):
    """Why nothing was measured.

    OUT_OF_MEMORY: TensorFlow could not allocate.
    CRASHED: a signal or TensorFlow itself ended the process.
    TIMED_OUT: the process took too long.
    ERROR: the model could not be built, planned or run.
    """

    OUT_OF_MEMORY = "out of memory"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    ERROR = "error"


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A model or a program to run.

    Attributes:
        model: an argument of `load_model`, or the command line of a program. A program decides
            everything else itself, so the other values are None.
        batch_size: images of one step.
        image_size: height and width; None for the model's own.
    """

    model: str
    mode: Mode | None = None
    batch_size: Positive | None = None
    precision: Precision | None = None
    image_size: tuple[Positive, Positive] | None = None

    @property
    def is_program(self) -> bool:
        """Whether this is a program and not a model."""
        return self.mode is None

    @property
    def name(self) -> str:
        """A unique short description."""
        if self.mode is None or self.precision is None:
            return self.model
        size = "" if self.image_size is None else f", {self.image_size[0]}x{self.image_size[1]}"
        return (
            f"{self.model}, {self.mode.value}, batch {self.batch_size}, "
            f"{self.precision.value}{size}"
        )

    def name_on(self, device: ProfiledDevice) -> str:
        """A short description with the precision that the device uses."""
        precision = self.precision and self.precision.computed_on(device)
        return dataclasses.replace(self, precision=precision).name


@dataclasses.dataclass(frozen=True, slots=True)
class PlanSource:
    """Where the plans come from; if all values are None, the policy `always` makes them.

    Attributes:
        plan_path: one file for all cases.
        profile_path: each case is planned from this profile.
        tune_budget_s: each case is tuned for this time.
    """

    plan_path: str | None = None
    profile_path: str | None = None
    tune_budget_s: float | None = None

    def __str__(self) -> str:
        """As on the command line."""
        if self.plan_path is not None:
            return f"with --plan {self.plan_path}"
        if self.profile_path is not None:
            return f"with --profile {self.profile_path}"
        if self.tune_budget_s is not None:
            return f"with --tune {self.tune_budget_s:g}s"
        return "with --policy always"


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Why a variant of a case was not measured."""

    kind: FailureKind
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """The measurement of one process. The whole run of a program counts as one step.

    Attributes:
        repetition: the number of the round, from 0.
        steps: timed steps, each from the call until all devices were done.
        median_ms: of these steps, as are the quartiles.
        first_step_ms: the first step, in which TensorFlow optimizes or compiles the graph and tries
            algorithms, without tracing. None for a program.
        memory_peak_bytes: the peak during the timed steps; on a GPU of TensorFlow's allocator, on a
            CPU of the process. For a program, the peak of its process.
        stage_count: stages and units in the graphs that ran, and calls of TensorFlow's kernels in
            functions that XLA compiled.
        fallbacks: how often stages did not run as planned, by reason, in all steps; not counted
            for a program.
        other_load: the share of the cores that other programs took meanwhile.
        slowed: the share of the steps during which some core was slower than before, as when the
            host of a virtual machine gives it away. Such steps count only if there are too few
            others.
        folded_count: nodes and normalizations that were folded or fused in the graphs that ran.
    """

    repetition: Count
    steps: Positive
    median_ms: Milliseconds
    first_quartile_ms: Milliseconds
    third_quartile_ms: Milliseconds
    first_step_ms: Milliseconds | None
    memory_peak_bytes: Count
    stage_count: Count
    fallbacks: dict[str, Count]
    other_load: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    slowed: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    folded_count: Count = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """All measurements of one variant of one case.

    Attributes:
        plan: the SHA-256 of the plan's file; None without a plan.
        failure: why there are no further blocks; None if nothing failed.
        blocks: by repetition.
    """

    case: Case
    variant: Variant
    plan: str | None = None
    failure: Failure | None = None
    blocks: tuple[Block, ...] = ()

    @property
    def fallbacks(self) -> collections.Counter[str]:
        """How often stages did not run as planned in all blocks, by reason."""
        counts: collections.Counter[str] = collections.Counter()
        for block in self.blocks:
            counts.update(block.fallbacks)
        return counts

    @property
    def same_as(self) -> Variant | None:
        """The variant that this one was, because nothing was changed: a difference is chance."""
        is_changed = any(block.stage_count or block.folded_count for block in self.blocks)
        if not self.blocks or is_changed:
            return None
        if self.variant.is_compiled_by_xla:
            return None if self.variant is Variant.XLA else Variant.XLA
        return Variant.STOCK if self.variant.needs_plan else None


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """A summary of one variant of one case: the columns of the CSV file.

    `speedup` compares blocks of the same round. It is None if no round has both, and if nothing was
    changed, so that the variant was another one. Its range is None if it is empty.
    """

    median_ms: float
    first_quartile_ms: float
    third_quartile_ms: float
    lowest_block_ms: float
    highest_block_ms: float
    examples_per_second: float | None
    speedup: float | None
    lowest_speedup: float | None
    highest_speedup: float | None
    first_step_ms: float | None
    memory_peak_bytes: int
    blocks: int
    stages: str
    fallbacks: int


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuringOptions:
    """How to measure a block.

    Attributes:
        warmup_steps: untimed steps after the first one.
        steps: the least number of timed steps.
        seconds: the least time of timed steps.
        timeout_seconds: the most that a process may take, including the import of TensorFlow.
    """

    warmup_steps: Count = 5
    steps: Positive = 20
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 2.0
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 900.0


@dataclasses.dataclass(frozen=True, slots=True)
class Benchmark:
    """The contents of a benchmark's file.

    Attributes:
        device: as in a profile.
        made_with: versions of the software, such as {"tensorflow": "2.21.0"}.
        commands: every command that added to the file.
        options: how each block was measured.
        results: one for each variant of each case, in the order in which they began.
        plan_source: where the plans come from; None if no variant has one.
    """

    device: ProfiledDevice
    made_with: dict[str, str]
    commands: tuple[str, ...]
    options: MeasuringOptions
    results: tuple[Result, ...] = ()
    plan_source: PlanSource | None = None
    format: str = "tf_interop.benchmark"
    version: int = 1

    @property
    def by_case(self) -> dict[Case, list[Result]]:
        """The results of each case."""
        cases: dict[Case, list[Result]] = {}
        for each in self.results:
            cases.setdefault(each.case, []).append(each)
        return cases

    def of(self, case: Case, variant: Variant) -> Result:
        """The result of a variant of a case, which may be empty."""
        found = (each for each in self.results if (each.case, each.variant) == (case, variant))
        return next(found, Result(case, variant))

    def has(self, case: Case, variant: Variant, repetition: int) -> bool:
        """Whether a round of a variant of a case was measured."""
        return any(block.repetition == repetition for block in self.of(case, variant).blocks)

    def summarize(self, result: Result) -> Summary | None:
        """Medians, spreads and ratios of one of `results`; None if it has no blocks."""
        blocks = result.blocks
        if not blocks:
            return None
        # Clocks, temperature and other users of the machine changed least within a round, because
        # its processes ran minutes apart at most.
        of_turn = {block.repetition: block.median_ms for block in blocks}
        speedups = [
            stock.median_ms / of_turn[stock.repetition]
            for stock in self.of(result.case, Variant.STOCK).blocks
            if stock.repetition in of_turn and result.same_as is None
        ]
        # A single round has no range.
        has_range = bool(speedups) and min(speedups) < max(speedups)
        median_ms = statistics.median(of_turn.values())
        stages = sorted({block.stage_count for block in blocks})
        first_steps_ms = [each.first_step_ms for each in blocks if each.first_step_ms is not None]
        size = result.case.batch_size
        return Summary(
            median_ms=median_ms,
            first_quartile_ms=statistics.median(block.first_quartile_ms for block in blocks),
            third_quartile_ms=statistics.median(block.third_quartile_ms for block in blocks),
            lowest_block_ms=min(of_turn.values()),
            highest_block_ms=max(of_turn.values()),
            examples_per_second=None if size is None else size / median_ms * 1e3,
            speedup=statistics.median(speedups) if speedups else None,
            lowest_speedup=min(speedups) if has_range else None,
            highest_speedup=max(speedups) if has_range else None,
            first_step_ms=statistics.median(first_steps_ms) if first_steps_ms else None,
            memory_peak_bytes=max(block.memory_peak_bytes for block in blocks),
            blocks=len(blocks),
            stages="–".join(map(str, dict.fromkeys((stages[0], stages[-1])))),
            fallbacks=result.fallbacks.total(),
        )


BENCHMARK_FILE = VersionedFormat(
    noun="benchmark",
    value_type=Benchmark,
    error=BenchmarkError,
    remedy="Remove the file and measure again, or choose another one.",
)
"""Files of benchmarks."""

load_benchmark = BENCHMARK_FILE.load
save_benchmark = BENCHMARK_FILE.save
benchmark_schema = BENCHMARK_FILE.schema
