"""The page of a parallel plan: its steps, its devices, and the devices of each layer."""

from __future__ import annotations

import dataclasses
import pathlib
import re

import pytest
from command_line import invoke, words_of
from parallel_values import PARALLEL_PLAN
from report_values import parse_page

from tf_interop.parallel.types import save_parallel_plan
from tf_interop.report.page import render_division


def test_shows_steps_devices_and_layers() -> None:
    page = render_division(PARALLEL_PLAN, "A <title>")
    text = parse_page(page).words
    assert "A <title>" in text and "pool <1>" in text
    assert "2 of 3 layers are divided" in text
    assert "4.1 kB to 1" in text and "512 bytes to 0" in text
    assert "modelled by the cost model" in text
    assert "no layer gets faster" in text and "No times are known." in text
    steps = re.findall(
        r"<td>(plan|whole|data|model)</td>\s*<td class=\"right\">([\d.]+)</td>", page
    )
    # The fastest strategy first, in times of one device.
    assert steps == [("plan", "1.66"), ("data", "1.33"), ("model", "1.11"), ("whole", "1.00")]
    rows = re.findall(r'class="(c\d|unstaged|none)" x="(?:0|15)" width="13"', page)
    # Both devices have a part of the divided layers, in the colours of sample and filter.
    assert rows == ["c0", "c0", "unstaged", "none", "c3", "c3"]


def test_a_plan_without_a_planner_has_no_times() -> None:
    first = dataclasses.replace(PARALLEL_PLAN.graphs[0], prediction=None)
    page = render_division(dataclasses.replace(PARALLEL_PLAN, graphs=(first,)), "A plan")
    assert "No times are known." in page and "2 layers are divided" in page


def test_the_commands_report_and_show_take_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_parallel_plan(PARALLEL_PLAN, tmp_path / "parallel.json")
    said = words_of(invoke("report parallel.json -o page.html"))
    assert "LeNet5, training, batch 8: 2 of 3 layers are divided" in said
    assert "The page is in page.html." in said
    shown = words_of(invoke("show parallel.json"))
    assert "training, batch 8, on 2 devices" in shown and "less than whole" in shown
    assert "0 layers are divided: no layer gets faster" in shown
    wrong = invoke("report parallel.json --png timeline.png", exit_code=2).stderr
    assert "'parallel.json' is a parallel plan, but --png needs a plan of one device." in " ".join(
        wrong.replace("│", "").split()
    )
