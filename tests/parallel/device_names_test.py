"""Names of devices: what they stand for in this process, and whether they are there."""

from __future__ import annotations

import pytest

from tf_interop import tensorflow_internals
from tf_interop.errors import PlanError
from tf_interop.parallel.costs.local_devices import check_devices_are_there, full_device_names


def test_what_a_name_leaves_out_is_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert full_device_names(["/device:GPU:1", "CPU:0", "/job:w/task:2/device:CPU:0"]) == (
        "/job:localhost/replica:0/task:0/device:GPU:1",
        "/job:localhost/replica:0/task:0/device:CPU:0",
        "/job:w/replica:0/task:2/device:CPU:0",
    )
    monkeypatch.setattr(tensorflow_internals, "local_task", lambda: ("worker", 1))
    assert full_device_names(["/device:CPU:0"]) == ("/job:worker/replica:0/task:1/device:CPU:0",)


@pytest.mark.parametrize("name", ["", "GPU", "/device:GPU", "/job:worker/task:1", "gpu zero", "/:"])
def test_refuses_what_names_no_device(name: str) -> None:
    with pytest.raises(PlanError, match=f"Expected names of devices .* got '{name}'"):
        full_device_names([name])


def test_refuses_one_device_by_two_names() -> None:
    with pytest.raises(PlanError, match=r"Expected every device once, got 'CPU:0' and '/cpu:0'"):
        full_device_names(["CPU:0", "/cpu:0"])


def test_says_which_devices_are_not_there_and_what_to_do() -> None:
    check_devices_are_there(["/device:CPU:0"])
    with pytest.raises(PlanError, match=r"Expected the 2 devices .* got 1: .*CPU:0. Missing: .*7"):
        check_devices_are_there(["/device:CPU:0", "/device:CPU:7"])
