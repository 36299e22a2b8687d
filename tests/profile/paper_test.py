"""What of the paper comes with the package."""

from __future__ import annotations

import json
import pathlib

from tf_interop.profile import paper
from tf_interop.profile.paper import load_paper_tables


def test_the_tables_are_those_that_the_project_starts_from() -> None:
    tables = load_paper_tables()
    gemm, fft = tables.table_1.rows
    assert (gemm.algorithm, fft.algorithm) == ("PRECOMP_GEMM", "FFT_TILING")
    assert (gemm.registers, gemm.shared_memory, gemm.alu_utilization) == (0.92, 0.39, 0.7)
    assert (fft.registers, fft.shared_memory, fft.alu_utilization) == (0.38, 0.75, 0.3)
    assert (gemm.memory_stall, fft.memory_stall) == (None, 0.15)
    assert [(row.algorithm, row.time_ms, row.workspace) for row in tables.table_2.rows] == [
        ("FFT", 36, "2.2 GB"),
        ("WINOGRAD_NONFUSED", 46, "691 MB"),
        ("PRECOMP_GEMM", 126, "4.8 GB"),
    ]


def test_the_tables_name_their_source_and_what_they_lack() -> None:
    tables = load_paper_tables()
    assert "10.1145/3350755.3400266" in tables.source
    assert "null" in tables.note
    assert tables.gpu is None


def test_no_value_of_the_file_is_passed_over() -> None:
    path = pathlib.Path(paper.__file__).with_name("paper_tables.json")
    raw = json.loads(path.read_text())
    tables = load_paper_tables()
    for number, rows in (("table_1", tables.table_1.rows), ("table_2", tables.table_2.rows)):
        for raw_row, row in zip(raw[number]["rows"], rows, strict=True):
            assert raw_row == {name: getattr(row, name) for name in raw_row}
