"""Samples of GPM in the worker process, with a library that counts which of them are allocated."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pynvml
import pytest

from dra_agent.nvml import gpm
from loaded_modules import loaded_modules

FUNCTION_NOT_FOUND, NOT_SUPPORTED, NO_PERMISSION, UNKNOWN = 13, 3, 4, 999
PERCENT = {1: 50.0, 2: 40.0, 5: 30.0, 10: 20.0}


class Library:
    """What the module uses of pynvml, without a driver."""

    NVMLError = pynvml.NVMLError
    NVML_SUCCESS = pynvml.NVML_SUCCESS
    NVML_ERROR_FUNCTION_NOT_FOUND = FUNCTION_NOT_FOUND
    NVML_ERROR_NOT_SUPPORTED = NOT_SUPPORTED
    NVML_GPM_METRICS_GET_VERSION = pynvml.NVML_GPM_METRICS_GET_VERSION
    c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t  # noqa: N815 - its name in pynvml

    def __init__(self) -> None:
        self.allocated: list[int] = []
        self.fails: dict[str, int] = {}
        self.is_supported = True
        self.instance = 3
        self.taken: list[tuple[int, int | None]] = []
        self.results = {metric: (0, percent) for metric, percent in PERCENT.items()}
        self._last = 0

    def _check(self, name: str) -> None:
        if name in self.fails:
            raise pynvml.NVMLError(self.fails[name])

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, device: Any) -> Any:
        return gpu(1)

    def nvmlDeviceGetGpuInstanceId(self, device: Any) -> int:
        return self.instance

    def nvmlGpmQueryDeviceSupport(self, device: Any) -> Any:
        self._check("support")
        return pynvml.c_nvmlGpmSupport_t(1, int(self.is_supported))

    def nvmlGpmSampleAlloc(self) -> Any:
        self._check("alloc")
        self._last += 16
        self.allocated.append(self._last)
        return ctypes.cast(self._last, pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        self.allocated.remove(address(sample))

    def nvmlGpmSampleGet(self, device: Any, sample: Any) -> None:
        self._check("sample")
        self.taken.append((address(device), None))

    def nvmlGpmMigSampleGet(self, device: Any, instance: int, sample: Any) -> None:
        self._check("sample")
        self.taken.append((address(device), instance))

    def nvmlGpmMetricsGet(self, request: Any) -> None:
        self._check("metrics")
        assert (request.version, request.numMetrics) == (1, len(gpm.METRICS))
        assert {address(request.sample1), address(request.sample2)} <= set(self.allocated)
        assert address(request.sample1) < address(request.sample2)
        for one in request.metrics[: request.numMetrics]:
            one.nvmlReturn, one.value = self.results[one.metricId]


def gpu(number: int) -> Any:
    return ctypes.cast(number << 8, pynvml.c_nvmlDevice_t)


def address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


@pytest.fixture
def library() -> Iterator[Library]:
    library = Library()
    yield library
    gpm.release_gpm(library)
    assert library.allocated == []


def read(library: Library, number: int = 1, uuid: str = "GPU-1") -> list[tuple[str, float]] | None:
    return gpm.read_gpm(library, gpu(number), uuid, uuid.startswith("MIG-"))


def test_the_second_reading_has_averages(library: Library) -> None:
    assert read(library) == []
    expected = [
        ("graphics_percent", 50.0),
        ("sm_percent", 40.0),
        ("tensor_percent", 30.0),
        ("memory_bandwidth_percent", 20.0),
    ]
    assert read(library) == expected
    assert library.taken == [(0x100, None)] * 2


def test_one_sample_is_kept_for_each_gpu_and_instance(library: Library) -> None:
    for _ in range(20):
        read(library)
        read(library, number=2, uuid="GPU-2")
        read(library, uuid="MIG-1")
    assert len(library.allocated) == 3
    assert gpm.release_gpm(library) == 3
    assert library.allocated == []
    assert read(library) == [], "nothing is left to compare with"


def test_an_instance_is_sampled_through_its_gpu(library: Library) -> None:
    assert read(library, number=9, uuid="MIG-1") == []
    assert read(library, number=9, uuid="MIG-1")
    assert library.taken == [(0x100, 3)] * 2


def test_an_instance_with_the_number_of_another_begins_again(library: Library) -> None:
    read(library, uuid="MIG-1")
    assert read(library, uuid="MIG-2") == []
    assert read(library, uuid="MIG-2")
    assert len(library.allocated) == 1


@pytest.mark.parametrize("step", ["support", "alloc", "sample"])
def test_a_reading_that_fails_leaves_no_sample(library: Library, step: str) -> None:
    read(library)
    library.fails[step] = NO_PERMISSION
    with pytest.raises(pynvml.NVMLError):
        read(library)
    assert library.allocated == []
    library.fails.clear()
    assert read(library) == [], "the reading before is too old"
    assert read(library)


def test_averages_that_fail_leave_the_newest_sample(library: Library) -> None:
    read(library)
    library.fails["metrics"] = UNKNOWN
    with pytest.raises(pynvml.NVMLError):
        read(library)
    assert len(library.allocated) == 1
    library.fails.clear()
    assert read(library)


@pytest.mark.parametrize("code", [FUNCTION_NOT_FOUND, NOT_SUPPORTED])
def test_a_driver_without_gpm_has_nothing(library: Library, code: int) -> None:
    library.fails["support"] = code
    assert read(library) is None
    assert library.allocated == []


def test_a_gpu_without_gpm_has_nothing(library: Library) -> None:
    library.is_supported = False
    assert read(library) is None
    assert library.allocated == []


def test_metrics_that_fail_or_are_not_numbers_are_left_out(library: Library) -> None:
    library.results = {1: (NOT_SUPPORTED, 7.0), 2: (0, float("nan")), 5: (0, float("inf")), 10: (0, 120.5)}
    read(library)
    assert read(library) == [("memory_bandwidth_percent", 120.5)]


def test_the_number_of_samples_is_limited(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpm, "MAX_KEPT", 2)
    for number in (1, 2, 1, 3):
        read(library, number=number, uuid=f"GPU-{number}")
    assert len(library.allocated) == 2
    assert read(library, number=1, uuid="GPU-1")
    assert read(library, number=2, uuid="GPU-2") == [], "it was not read for longest"


def test_a_worker_does_not_load_it_without_telemetry() -> None:
    loaded = loaded_modules("import dra_agent.nvml.worker")
    assert "dra_agent.nvml.worker" in loaded and "dra_agent.nvml.gpm" not in loaded
