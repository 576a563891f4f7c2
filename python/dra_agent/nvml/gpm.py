"""GPU Performance Monitoring (GPM) in the worker process: averages of a GPU or a MIG GPU instance between readings.

A reading is an opaque sample that the library allocates. The last one of each GPU and instance stays in this process
until the next one, so that the agent needs no handle of it, and it is gone with the process.

Functions, numbers of metrics, units and versions: nvml.h (NVIDIA/go-nvml, gen/nvml/nvml.h), for Hopper and newer.
NVIDIA's reference has them from driver 520 on.
"""

from __future__ import annotations

import ctypes
import math
import threading
from contextlib import suppress

TYPE_CHECKING = False  # typing, which has it too, takes 0.5 MiB
if TYPE_CHECKING:
    from typing import Any

METRICS = (("graphics_percent", 1), ("sm_percent", 2), ("tensor_percent", 5), ("memory_bandwidth_percent", 10))
"""NVML_GPM_METRIC_GRAPHICS_UTIL, _SM_UTIL, _ANY_TENSOR_UTIL and _DRAM_BW_UTIL: 0 to 100."""
MAX_KEPT = 512
"""Samples that are kept: 16 GPUs with 7 instances each need 128. The one that was not used for longest is freed."""
_WHOLE = -1
"""In place of the number of a GPU instance."""

_kept: dict[tuple[int, int], tuple[str, Any]] = {}
"""By GPU and number of the instance: the UUID of the device, and its last sample."""
_keeping = threading.Lock()


def read_gpm(module: Any, device: Any, uuid: str, is_instance: bool) -> list[tuple[str, float]] | None:
    """Return averages in percent since the call before for the same device; what the driver does not have is left out.

    Empty in the first call for a device, also if it has the place of another one. None if the GPU does not support it.
    `uuid` and `device` are of a GPU, or of a MIG device: then values are of its GPU instance. The time between two
    calls must be more than 100 ms.

    Raises:
        NVMLError: No sample can be taken. The next call is a first one.
    """
    gpu, instance = device, _WHOLE
    if is_instance:
        # NVIDIA's own caller samples an instance through its GPU (NVIDIA/DCGM, DcgmGpmManager.cpp).
        gpu = module.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
        instance = module.nvmlDeviceGetGpuInstanceId(device)
    place = ctypes.cast(gpu, ctypes.c_void_p).value or 0, instance
    with _keeping:
        known_uuid, before = _kept.pop(place, ("", None))
    try:
        if not _is_supported(module, gpu):
            return None
        sample = _sample(module, gpu, instance)
        try:
            # An instance can have the number of one that was destroyed.
            return [] if before is None or known_uuid != uuid else _averages(module, before, sample)
        finally:
            _keep(module, place, uuid, sample)
    finally:
        if before is not None:
            _free(module, before)


def release_gpm(module: Any) -> int:
    """Free all samples that are kept; return how many."""
    with _keeping:
        samples = [sample for _, sample in _kept.values()]
        _kept.clear()
    for sample in samples:
        _free(module, sample)
    return len(samples)


def _is_supported(module: Any, gpu: Any) -> bool:
    try:
        return bool(module.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice)
    except module.NVMLError as error:
        if error.value in (module.NVML_ERROR_FUNCTION_NOT_FOUND, module.NVML_ERROR_NOT_SUPPORTED):
            return False
        raise


def _sample(module: Any, gpu: Any, instance: int) -> Any:
    sample = module.nvmlGpmSampleAlloc()
    try:
        if instance == _WHOLE:
            module.nvmlGpmSampleGet(gpu, sample)
        else:
            module.nvmlGpmMigSampleGet(gpu, instance, sample)
    except module.NVMLError:
        _free(module, sample)
        raise
    return sample


def _averages(module: Any, before: Any, sample: Any) -> list[tuple[str, float]]:
    request = module.c_nvmlGpmMetricsGet_t()
    request.version = module.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(METRICS)
    request.sample1, request.sample2 = before, sample
    for index, (_, metric) in enumerate(METRICS):
        request.metrics[index].metricId = metric
    module.nvmlGpmMetricsGet(request)
    found = zip((name for name, _ in METRICS), request.metrics, strict=False)
    # A value that is not a number is of no time: DcgmGpmManager.cpp takes it for an absent one.
    return [
        (name, one.value) for name, one in found if one.nvmlReturn == module.NVML_SUCCESS and math.isfinite(one.value)
    ]


def _keep(module: Any, place: tuple[int, int], uuid: str, sample: Any) -> None:
    with _keeping:
        _kept[place] = uuid, sample
        oldest = _kept.pop(next(iter(_kept))) if len(_kept) > MAX_KEPT else None
    if oldest is not None:
        _free(module, oldest[1])


def _free(module: Any, sample: Any) -> None:
    with suppress(module.NVMLError):
        module.nvmlGpmSampleFree(sample)
