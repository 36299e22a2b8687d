"""What the status says in words."""

from __future__ import annotations

import dataclasses

from tf_interop.know.installed.kernel_library import Counters
from tf_interop.use.enabling.status import Status


def test_counts_what_stages_did() -> None:
    counters = Counters(7, {"no memory": 2}, {"no partition": 3}, filters_transformed=5)
    status = Status(is_on=True, why_off="", counters=counters)
    text = str(status)
    assert "7 stages run" in text
    assert "5 constant filters transformed once" in text
    assert "no memory" in text
    assert "no partition" in text


def test_says_what_each_of_several_devices_did() -> None:
    gpu = Counters(3, {"no memory": 2}, {"no partition": 1})
    cpu = Counters(4, {})
    counters = Counters(7, {"no memory": 2}, devices={"CPU:0": cpu, "GPU:0": gpu})
    lines = str(dataclasses.replace(Status(is_on=True, why_off=""), counters=counters)).split("\n")
    assert "  7 stages run" in lines
    assert "  CPU:0: 4 stages run" in lines
    assert "  GPU:0: fallback, 2 times: no memory" in lines
    assert "  GPU:0: lanes without the options of the plan, 1 times: no partition" in lines
    assert "  fallback, 2 times: no memory" not in lines


def test_says_nothing_of_filters_where_none_was_transformed() -> None:
    counters = Counters(7, {})
    status = dataclasses.replace(Status(is_on=True, why_off=""), counters=counters)
    assert "constant filters" not in str(status)
