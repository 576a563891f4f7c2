"""Constants and structures of NVML (nvml.h) that the agent's own process uses, under the names that pynvml gives them.

pynvml has all of NVML, and importing it takes 2.5 MiB. Only the worker process needs its functions, so this module
takes its place in the agent. Other names are taken from pynvml, which is imported for the first of them.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    Union,
    c_char,
    c_double,
    c_int,
    c_longlong,
    c_ubyte,
    c_uint,
    c_ulonglong,
    c_ushort,
)
from typing import Any, ClassVar

NVML_INIT_FLAG_NO_GPUS = 1
NVML_GPU_VIRTUALIZATION_MODE_VGPU = 2
NVML_GPU_INSTANCE_PROFILE_COUNT = 18
NVML_COMPUTE_INSTANCE_PROFILE_COUNT = 9
NVML_DEVICE_MEMORY_LIMIT_MAX = (1 << 64) - 1

NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_INSUFFICIENT_POWER = 8
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_IRQ_ISSUE = 11
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_CORRUPTED_INFOROM = 14
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_RESET_REQUIRED = 16
NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
NVML_ERROR_NO_DATA = 21
NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
NVML_ERROR_DEPRECATED = 26
NVML_ERROR_GPU_NOT_FOUND = 28
KNOWN_ERRORS = frozenset({*range(1, 31), 999})
"""All codes of nvmlReturn_t that pynvml knows."""

_NAME_BYTES = 96
"""NVML_DEVICE_NAME_V2_BUFFER_SIZE"""
_UUID_BYTES = 16
"""NVML_GPU_FABRIC_UUID_LEN"""


class struct_c_nvmlDevice_t(Structure):
    """A GPU; only its address is used, like those of the next three."""


class struct_c_nvmlGpuInstance_t(Structure):
    """A GPU instance of MIG."""


class struct_c_nvmlComputeInstance_t(Structure):
    """A compute instance of MIG."""


class struct_c_nvmlEventSet_t(Structure):
    """A set of events."""


c_nvmlDevice_t = POINTER(struct_c_nvmlDevice_t)
c_nvmlGpuInstance_t = POINTER(struct_c_nvmlGpuInstance_t)
c_nvmlComputeInstance_t = POINTER(struct_c_nvmlComputeInstance_t)
c_nvmlEventSet_t = POINTER(struct_c_nvmlEventSet_t)


class _Versioned(Structure):
    """A structure whose first field has its size and version, as NVML_STRUCT_VERSION computes it."""

    _version: ClassVar[int]

    def __init__(self) -> None:
        super().__init__(version=ctypes.sizeof(self) | self._version << 24)


class c_nvmlMemory_t(Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class c_nvmlValue_t(Union):
    _fields_ = (
        ("dVal", c_double),
        ("uiVal", c_uint),
        ("ulVal", ctypes.c_ulong),
        ("ullVal", c_ulonglong),
        ("sllVal", c_longlong),
        ("siVal", c_int),
        ("usVal", c_ushort),
    )


class c_nvmlFieldValue_t(Structure):
    _fields_ = (
        ("fieldId", c_uint),
        ("scopeId", c_uint),
        ("timestamp", c_longlong),
        ("latencyUsec", c_longlong),
        ("valueType", c_uint),
        ("nvmlReturn", c_uint),
        ("value", c_nvmlValue_t),
    )


class c_nvmlEventData_t(Structure):
    _fields_ = (
        ("device", c_nvmlDevice_t),
        ("eventType", c_ulonglong),
        ("eventData", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    )


_SHARED_ENGINES = (
    ("multiprocessorCount", c_uint),
    ("sharedCopyEngineCount", c_uint),
    ("sharedDecoderCount", c_uint),
    ("sharedEncoderCount", c_uint),
    ("sharedJpegCount", c_uint),
    ("sharedOfaCount", c_uint),
)
"""Fields of two structures: what compute instances of one GPU instance share."""


class c_nvmlDeviceAttributes(Structure):
    _fields_ = (
        *_SHARED_ENGINES,
        ("gpuInstanceSliceCount", c_uint),
        ("computeInstanceSliceCount", c_uint),
        ("memorySizeMB", c_ulonglong),
    )


class c_nvmlGpuFabricInfo_v2_t(_Versioned):
    _version = 2
    _fields_ = (
        ("version", c_uint),
        ("clusterUuid", c_ubyte * _UUID_BYTES),
        ("status", c_uint),
        ("cliqueId", c_uint),
        ("state", c_uint),
        ("healthMask", c_uint),
    )


class c_nvmlGpuFabricInfo_v3_t(_Versioned):
    _version = 3
    _fields_ = (*c_nvmlGpuFabricInfo_v2_t._fields_, ("healthSummary", c_ubyte))


class c_nvmlGpuInstancePlacement_t(Structure):
    _fields_ = (("start", c_uint), ("size", c_uint))


class c_nvmlGpuInstanceInfo_t(Structure):
    _fields_ = (
        ("device", c_nvmlDevice_t),
        ("id", c_uint),
        ("profileId", c_uint),
        ("placement", c_nvmlGpuInstancePlacement_t),
    )


class c_nvmlGpuInstanceProfileInfo_t(Structure):
    _fields_ = (
        ("id", c_uint),
        ("isP2pSupported", c_uint),
        ("sliceCount", c_uint),
        ("instanceCount", c_uint),
        ("multiprocessorCount", c_uint),
        ("copyEngineCount", c_uint),
        ("decoderCount", c_uint),
        ("encoderCount", c_uint),
        ("jpegCount", c_uint),
        ("ofaCount", c_uint),
        ("memorySizeMB", c_ulonglong),
    )


class c_nvmlGpuInstanceProfileInfo_v2_t(_Versioned):
    _version = 2
    _fields_ = (("version", c_uint), *c_nvmlGpuInstanceProfileInfo_t._fields_, ("name", c_char * _NAME_BYTES))


class c_nvmlComputeInstancePlacement_t(Structure):
    _fields_ = (("start", c_uint), ("size", c_uint))


class c_nvmlComputeInstanceInfo_t(Structure):
    _fields_ = (
        ("device", c_nvmlDevice_t),
        ("gpuInstance", c_nvmlGpuInstance_t),
        ("id", c_uint),
        ("profileId", c_uint),
        ("placement", c_nvmlComputeInstancePlacement_t),
    )


class c_nvmlComputeInstanceProfileInfo_v2_t(_Versioned):
    _version = 2
    _fields_ = (
        ("version", c_uint),
        ("id", c_uint),
        ("sliceCount", c_uint),
        ("instanceCount", c_uint),
        *_SHARED_ENGINES,
        ("name", c_char * _NAME_BYTES),
    )


def __getattr__(name: str) -> Any:
    """Return what pynvml has under a name that is not defined here."""
    if name.startswith("_"):
        raise AttributeError(name)
    if hasattr(ctypes, name):  # pynvml has the names of ctypes too
        return getattr(ctypes, name)
    import pynvml

    return getattr(pynvml, name)
