"""The demonstration, with one small network."""

from __future__ import annotations

import re

from command_line import python_output


def test_compares_times_and_outputs() -> None:
    printed = python_output(
        *("python/examples/demonstration.py", "--network", "MobileNetV2", "--seconds", "0.1"),
        TF_INTEROP_HOST_STAGES="0",
    )
    # The status has a table with its name, too.
    row = re.findall(r"MobileNetV2 .*", printed)[0]
    stock, ours, ratio, difference = map(float, re.findall(r"[\d.]+(?:e-?\d+)?", row[11:]))
    assert abs(stock / ours - ratio) < 0.1
    assert 0 < difference < 1e-4
    assert "MobileNetV2: input 1x224x224x3: runs " in printed
