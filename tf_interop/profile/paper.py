"""The tables of the paper that this project starts from, as far as their values are known here.

Pourghassemi et al., "On the Limits of Parallelizing Convolutional Neural Networks on GPUs", SPAA
2020, doi 10.1145/3350755.3400266. They are in `paper_tables.json`, beside this module.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources

import msgspec

from tf_interop.profile.entries import Positive, Share


@dataclasses.dataclass(frozen=True, slots=True)
class PaperKernel:
    """A row of Table 1: what an algorithm's kernel takes of an SM. None: not known here.

    Attributes:
        algorithm: the paper's name.
        registers: share of an SM's registers.
        shared_memory: share of its shared memory.
        threads: share of its thread slots.
        blocks: share of its block slots.
        alu_utilization: share of the time in which the arithmetic units are busy.
        memory_stall: share of stalls that wait for memory.
    """

    algorithm: str
    registers: Share | None
    shared_memory: Share | None
    threads: Share | None
    blocks: Share | None
    alu_utilization: Share | None
    memory_stall: Share | None


@dataclasses.dataclass(frozen=True, slots=True)
class PaperCost:
    """A row of Table 2: what an algorithm costs.

    Attributes:
        algorithm: the paper's name.
        time_ms: its time.
        workspace: its workspace, as printed.
    """

    algorithm: str
    time_ms: Positive
    workspace: str


@dataclasses.dataclass(frozen=True, slots=True)
class PaperTable1:
    """Table 1.

    Attributes:
        what: what the rows say.
        layers: the convolutions; None where they are not known here.
        rows: one for each algorithm.
    """

    what: str
    layers: str | None
    rows: tuple[PaperKernel, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PaperTable2:
    """Table 2.

    Attributes:
        what: what the rows say.
        layers: the convolution; None where more than `what` says is not known here.
        rows: one for each algorithm.
    """

    what: str
    layers: str | None
    rows: tuple[PaperCost, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PaperTables:
    """Both tables.

    Attributes:
        source: authors, title and where it appeared.
        note: what is in the tables, and what is not.
        gpu: what the paper measured on; None where it is not known here.
        table_1: use of an SM.
        table_2: time and workspace.
    """

    source: str
    note: str
    gpu: str | None
    table_1: PaperTable1
    table_2: PaperTable2


@functools.cache
def load_paper_tables() -> PaperTables:
    """The tables that come with this package."""
    content = importlib.resources.files("tf_interop.profile").joinpath("paper_tables.json")
    return msgspec.json.decode(content.read_bytes(), type=PaperTables)
