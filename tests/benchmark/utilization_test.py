"""How busy the GPU is while steps are timed, from a made-up NVML."""

from __future__ import annotations

import sys
import time

import pytest
from fake_nvml import A100, H200, FakeNvml

from tf_interop.benchmark import child as benchmark_child
from tf_interop.measure.nvidia import utilization_reader


class BusyNvml(FakeNvml):
    """Says 20 % and 60 % by turns for the H200, and 99 % for others."""

    def __init__(self, *gpus: object, **others: object) -> None:
        super().__init__(*gpus, **others)  # type: ignore[arg-type]
        self.asked = 0

    def nvmlDeviceGetUtilizationRates(self, gpu: object) -> object:  # noqa: N802
        self.asked += 1
        gpu_percent = (60, 20)[self.asked % 2] if gpu is H200 else 99
        return type("Rates", (), {"gpu": gpu_percent})()


@pytest.fixture(autouse=True)
def fixture_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(benchmark_child, "_SECONDS_BETWEEN_SAMPLES", 0.005)
    monkeypatch.setattr(benchmark_child, "_SHORTEST_SAMPLED_SECONDS", 0.1)


def _mean_after(seconds: float) -> float | None:
    with benchmark_child._utilization_sampled() as mean:
        time.sleep(seconds)
        return mean()


def test_is_the_mean_of_samples_of_the_visible_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = BusyNvml(A100, H200)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert _mean_after(0.3) == pytest.approx(0.4, abs=0.05)
    assert nvml.asked > 5
    assert nvml.open_count == 0


def test_is_unknown_where_nvml_does_not_resolve_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", BusyNvml(H200))
    assert _mean_after(0.02) is None


@pytest.mark.parametrize(
    "nvml",
    [
        BusyNvml(),
        BusyNvml(has_driver=False),
        BusyNvml(H200, refused=("nvmlDeviceGetUtilizationRates",)),
    ],
)
def test_is_unknown_without_a_gpu_that_tells(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with utilization_reader() as read:
        assert read() is None
    assert _mean_after(0.15) is None
