"""What a benchmark measures: cases, variants of running them, and the values of each block.

A *case* is a network, a mode, a batch size and a precision. A *variant* is a way to run it. A
*block* is what one process measures of one variant of one case; the variants of a case take turns.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import statistics
from collections.abc import Iterable
from typing import Annotated

import msgspec
import numpy as np

from tf_interop.profile.entries import Share
from tf_interop.profile.types import ProfiledDevice

BENCHMARK_FORMAT = "tf_interop.benchmark"
BENCHMARK_VERSION = 1

Count = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(gt=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
_NO_FALLBACKS: collections.Counter[str] = collections.Counter()


class Variant(enum.Enum):
    """A way to run a model.

    STOCK: TensorFlow as it is.
    XLA: compiled with `jit_compile=True`.
    OURS: with the stages of the plan.
    PINNING: the plan's algorithms alone; the convolutions of a stage run one after another.
    CONCURRENCY: the plan's lanes alone; the algorithms are those that cuDNN would choose.
    """

    STOCK = "stock"
    XLA = "xla"
    OURS = "ours"
    PINNING = "pinning"
    CONCURRENCY = "concurrency"

    @property
    def needs_plan(self) -> bool:
        """Whether it runs stages."""
        return self in (Variant.OURS, Variant.PINNING, Variant.CONCURRENCY)


class Mode(enum.Enum):
    """What is run of a model: inference, or one step of training with SGD."""

    INFERENCE = "inference"
    TRAINING = "training"


class Precision(enum.Enum):
    """What convolutions compute in.

    FLOAT32: float32, with TensorFlow's switch for TF32 off.
    TF32: float32, with that switch on. On a CPU that is the same as FLOAT32.
    FLOAT16: Keras' policy `mixed_float16`.
    BFLOAT16: Keras' policy `mixed_bfloat16`.
    """

    FLOAT32 = "float32"
    TF32 = "tf32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def keras_policy(self) -> str:
        """Keras' dtype policy."""
        return f"mixed_{self.value}" if self.value.endswith("16") else "float32"

    def computed_on(self, device: ProfiledDevice) -> Precision:
        """What a device computes in where this is asked for: a CPU has no TF32."""
        return Precision.FLOAT32 if self is Precision.TF32 and device.backend == "host" else self


class FailureKind(enum.Enum):
    """Why nothing was measured.

    OUT_OF_MEMORY: TensorFlow could not allocate.
    CRASHED: a signal or TensorFlow itself ended the process.
    TIMED_OUT: the process took longer than it may.
    ERROR: the model could not be built, planned or run.
    """

    OUT_OF_MEMORY = "out of memory"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    ERROR = "error"


class MemoryKind(enum.Enum):
    """What a memory peak is of.

    GPU_ALLOCATOR: what TensorFlow's allocator for the GPU had handed out, while steps were timed.
    PROCESS_RSS: the memory of the whole process since it began, TensorFlow itself included.
    """

    GPU_ALLOCATOR = "gpu_allocator"
    PROCESS_RSS = "process_rss"


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """What is run.

    Attributes:
        model: as `load_model` takes it.
        mode: inference or training.
        batch_size: images of one step.
        precision: what convolutions compute in.
        image_size: height and width; None for those that the model was made for.
    """

    model: str
    mode: Mode
    batch_size: Positive
    precision: Precision
    image_size: tuple[Positive, Positive] | None = None

    @property
    def name(self) -> str:
        """The case in a few words, the same for no other."""
        size = "" if self.image_size is None else f", {self.image_size[0]}x{self.image_size[1]}"
        return (
            f"{self.model}, {self.mode.value}, batch {self.batch_size}, "
            f"{self.precision.value}{size}"
        )

    def name_on(self, device: ProfiledDevice) -> str:
        """The case in a few words, with the precision that the device computes in."""
        return dataclasses.replace(self, precision=self.precision.computed_on(device)).name


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Why a variant of a case was not measured.

    Attributes:
        kind: what happened.
        message: more about it, for reading.
    """

    kind: FailureKind
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """What one process measured.

    Attributes:
        repetition: which turn it was, from 0.
        step_ms: of each timed step, from the call until all devices were done.
        first_step_ms: of the first step, in which TensorFlow optimizes or compiles the graph and
            tries algorithms; tracing is not in it.
        memory_peak_bytes: the most memory that was held.
        memory_kind: which memory that is.
        gpu_utilization: mean share of the time in which a kernel ran, by NVML; None where there is
            no GPU, or steps were timed for less than a second, which NVML does not resolve.
        stage_count: stages in the graphs that ran.
        fallbacks: how often stages did not do as planned, by reason, in all steps.
        began: date and time in UTC, as in ISO 8601.
    """

    repetition: Count
    step_ms: Annotated[tuple[Milliseconds, ...], msgspec.Meta(min_length=1)]
    first_step_ms: Milliseconds
    memory_peak_bytes: Count
    memory_kind: MemoryKind
    gpu_utilization: Share | None
    stage_count: Count
    fallbacks: dict[str, Count]
    began: str


@dataclasses.dataclass(frozen=True, slots=True)
class Speedup:
    """How many times as fast as stock TensorFlow, block against block of the same turn.

    Attributes:
        median: of all turns.
        lowest: of all turns.
        highest: of all turns.
    """

    median: float
    lowest: float
    highest: float

    @property
    def has_range(self) -> bool:
        """Whether it is of several turns: one says nothing of how far turns differ."""
        return self.lowest < self.highest


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """The blocks of one variant of one case, in short.

    Attributes:
        median_ms: of all timed steps.
        quartile_ms: the first and the third quartile of all timed steps.
        block_range_ms: the lowest and the highest median of a block: what changes between
            processes, and drifts.
        first_step_ms: the median of the blocks.
        memory_peak_bytes: the highest of the blocks.
        gpu_utilization: the mean of the blocks that have one; None where none has.
        examples_per_second: batch size over `median_ms`.
        speedup: over stock TensorFlow; None where no turn has both, and for a plan without a stage:
            what ran is stock TensorFlow itself.
        ran_as_stock: whether the plan had no stage for it, so that any difference to stock is
            noise.
    """

    median_ms: float
    quartile_ms: tuple[float, float]
    block_range_ms: tuple[float, float]
    first_step_ms: float
    memory_peak_bytes: int
    gpu_utilization: float | None
    examples_per_second: float
    speedup: Speedup | None
    ran_as_stock: bool


@dataclasses.dataclass(frozen=True, slots=True)
class VariantResult:
    """What was measured of one variant of one case.

    Attributes:
        variant: in which way it was run.
        plan: the SHA-256 of the plan's file; None for a variant that needs none, and where there
            was none to be had.
        failure: why there are no further blocks; None where nothing failed.
        blocks: what each process measured, by repetition.
    """

    variant: Variant
    plan: str | None = None
    failure: Failure | None = None
    blocks: tuple[Block, ...] = ()

    @property
    def fallbacks(self) -> collections.Counter[str]:
        """How often stages did not do as planned in all blocks, by reason."""
        return sum((collections.Counter(each.fallbacks) for each in self.blocks), _NO_FALLBACKS)


@dataclasses.dataclass(frozen=True, slots=True)
class CaseResult:
    """What was measured of one case.

    Attributes:
        case: what was run.
        variants: each way once, in the order in which they were begun.
    """

    case: Case
    variants: tuple[VariantResult, ...]

    def of(self, variant: Variant) -> VariantResult:
        """What was measured of a variant, which may be nothing."""
        found = (each for each in self.variants if each.variant is variant)
        return next(found, VariantResult(variant))

    def summarize(self, variant: Variant) -> Summary | None:
        """Medians, spreads and ratios; None where the variant has no block."""
        blocks = self.of(variant).blocks
        if not blocks:
            return None
        steps = [each for block in blocks for each in block.step_ms]
        first, median, third = (float(each) for each in np.quantile(steps, (0.25, 0.5, 0.75)))
        medians = [statistics.median(block.step_ms) for block in blocks]
        utilizations = [each.gpu_utilization for each in blocks if each.gpu_utilization is not None]
        ran_as_stock = variant.needs_plan and not any(block.stage_count for block in blocks)
        return Summary(
            median_ms=median,
            quartile_ms=(first, third),
            block_range_ms=(min(medians), max(medians)),
            first_step_ms=statistics.median(block.first_step_ms for block in blocks),
            memory_peak_bytes=max(block.memory_peak_bytes for block in blocks),
            gpu_utilization=statistics.fmean(utilizations) if utilizations else None,
            examples_per_second=self.case.batch_size / median * 1e3,
            speedup=None if ran_as_stock else self._speedup(blocks),
            ran_as_stock=ran_as_stock,
        )

    def _speedup(self, blocks: Iterable[Block]) -> Speedup | None:
        # Of one turn: the two processes ran minutes apart at most, so that clocks, temperature and
        # other users of the machine have changed the least between them.
        stock = self.of(Variant.STOCK).blocks
        stock_ms = {block.repetition: statistics.median(block.step_ms) for block in stock}
        ratios = [
            stock_ms[block.repetition] / statistics.median(block.step_ms)
            for block in blocks
            if block.repetition in stock_ms
        ]
        if not ratios:
            return None
        return Speedup(statistics.median(ratios), min(ratios), max(ratios))


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuringOptions:
    """How a block is measured.

    Attributes:
        warmup_steps: run after the first step and not timed.
        steps: the fewest steps to time.
        seconds: the shortest time to go on timing.
        timeout_seconds: what a process may take at most, TensorFlow's import included.
    """

    warmup_steps: Count = 5
    steps: Positive = 20
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 2.0
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 900.0


@dataclasses.dataclass(frozen=True, slots=True)
class Benchmark:
    """What a benchmark's file holds.

    Attributes:
        device: what was measured on, as in a profile.
        made_with: versions of the software, such as {"tensorflow": "2.21.0"}.
        commands: every command that added to the file.
        options: how each block was measured.
        results: one for each case, in the order in which they were begun.
        format: always `tf_interop.benchmark`.
        version: version of the format.
    """

    device: ProfiledDevice
    made_with: dict[str, str]
    commands: tuple[str, ...]
    options: MeasuringOptions
    results: tuple[CaseResult, ...] = ()
    format: str = BENCHMARK_FORMAT
    version: int = BENCHMARK_VERSION

    @property
    def variant_results(self) -> list[tuple[CaseResult, VariantResult]]:
        """Each variant of each case, with its case."""
        return [(result, measured) for result in self.results for measured in result.variants]
