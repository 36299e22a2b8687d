"""What the plugin did in one run of a program, as a file."""

from __future__ import annotations

import dataclasses

from tf_interop.convolution import Refusal
from tf_interop.errors import ProfileError
from tf_interop.profile.entries import Count, Day, PositiveCount
from tf_interop.versioned_file import PathLike, VersionedFormat

RUN_FORMAT = "tf_interop.run"
RUN_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class RunGraph:
    """What the pass did to one graph.

    Attributes:
        fingerprint: identifies the graph's convolutions.
        batch_size: of the graph; None where it is not known.
        device_type: whose convolutions were looked at, `CPU` or `GPU`.
        convolution_count: convolutions that could be part of a stage.
        stage_count: stages that were made.
        refusals: convolution nodes that stay as they are, with the reason.
        why_unchanged: empty where stages were made, else why not.
    """

    fingerprint: str
    batch_size: PositiveCount | None
    device_type: str
    convolution_count: Count
    stage_count: Count
    refusals: tuple[Refusal, ...] = ()
    why_unchanged: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run file holds.

    Attributes:
        date: day of the run in UTC.
        device: name of the device that ran it.
        command: the program with its arguments.
        graphs: what the pass did to the graphs that it saw.
        stages_run: how many times a stage was run.
        fallbacks: how often something other than the plan's choice ran, by reason.
        refused_lane_options: how often lanes ran without the priorities and SM counts of the plan,
            by reason.
        failures: how many graphs were left as they were because the pass failed, by cause.
        format: always `tf_interop.run`.
        version: version of the format.
        made_with: versions of the software, such as {"tensorflow": "2.21.0"}.
    """

    date: Day
    device: str
    command: str
    graphs: tuple[RunGraph, ...]
    stages_run: Count = 0
    fallbacks: dict[str, Count] = dataclasses.field(default_factory=dict)
    refused_lane_options: dict[str, Count] = dataclasses.field(default_factory=dict)
    failures: dict[str, Count] = dataclasses.field(default_factory=dict)
    format: str = RUN_FORMAT
    version: int = RUN_VERSION
    made_with: dict[str, str] = dataclasses.field(default_factory=dict)


def load_run(path: PathLike) -> RunRecord:
    """Reads a run file.

    Raises:
        ProfileError: there is no such file, it is not whole, of another format or version, or not
            legal. Says where in the file, what was expected and what to do.
    """
    return _RUN_FILE.load(path)


def save_run(record: RunRecord, path: PathLike) -> None:
    """Writes a run file, atomically; equal records give equal bytes.

    Raises:
        ProfileError: the record is not legal, or the file cannot be written.
    """
    _RUN_FILE.save(record, path)


_RUN_FILE = VersionedFormat(
    noun="run",
    value_type=RunRecord,
    error=ProfileError,
    remedy="Run the program again with tf-interop run --save-run.",
)
