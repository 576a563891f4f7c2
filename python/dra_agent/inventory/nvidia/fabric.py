"""Registration of a GPU with its NVLink fabric, and the health that the fabric reports for it.

CUDA fails with "system not yet initialized" (802) on a GPU that is not registered (pytorch/pytorch#35710). Values are
those of nvmlGpuFabricInfo_v3_t and _v4_t in nvml.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dra_agent.inventory.nvidia.nvml_client import NotSupportedError, NvmlError
from dra_agent.inventory.nvidia.recovery import branch_of

NOT_READY, DEGRADED = "fabric-not-ready", "fabric-degraded"
"""Causes. A GPU that is not ready fails every claim; a degraded one has less bandwidth, or fails soon."""

_VERSION_4_SINCE_BRANCH = 615
_NOT_SUPPORTED, _NOT_STARTED, _IN_PROGRESS, _COMPLETED = range(4)
_STATES = {_NOT_STARTED: "has not started", _IN_PROGRESS: "is in progress"}

_TRUE = 1
_FALSE = 2
_FLAGS = (
    (0, _TRUE, "its bandwidth is degraded"),
    (2, _TRUE, "a route is being recovered"),
    (4, _TRUE, "a route is unhealthy"),
    (6, _TRUE, "it recovers from an access timeout"),
    (14, _FALSE, "the global fabric manager is disconnected"),
)
"""Shift of two bits, the value that is a failure, its meaning. Bits 0 to 7 since driver 570, 14 since 615."""
_CONFIGURATION_SHIFT = 8
_CONFIGURATION = {
    2: "the system GUID is incorrect",
    3: "the chassis serial number is incorrect",
    4: "no partition",
    5: "not enough NVLinks",
    6: "the GPU's firmware is incompatible",
    7: "the location is invalid",
    8: "the state of the GPU is invalid",
}
_CORRECT = (0, 1)
"""Not supported, and none."""
_SUMMARIES = {2: "the fabric reports it as unhealthy", 3: "the fabric reports limited capacity"}


@dataclass(frozen=True, slots=True)
class FabricIssue:
    """One fault of a GPU's fabric."""

    cause: str
    message: str
    transient: bool = False
    """It is a stage of a start, too."""


@dataclass(frozen=True, slots=True)
class FabricInfo:
    """NVML's report; empty for a GPU without fabric."""

    domain: str | None = None
    clique: int | None = None
    issues: tuple[FabricIssue, ...] = ()
    unknown: str = ""
    """A value that this agent does not know, for the log."""


def read_fabric(module: Any, driver: str | None, ask: Callable[..., Any], call: Callable[..., Any]) -> FabricInfo:
    """Read the fabric of one GPU, in the newest structure that the driver fills.

    `module` is pynvml, `driver` the driver's version. `ask` returns None for a failed call, `call` raises NvmlError.
    Version 3 of the structure needs driver 580, version 4 a function that drivers have since 615. Both older versions
    are deprecated, and will be removed (change log of NVML).
    """
    info = _read_version_4(module, call) if branch_of(driver) >= _VERSION_4_SINCE_BRANCH else None
    if info is not None:
        clique = _unicast_clique(module, info)
    else:
        info = _read_older(module, ask, call)
        if info is None:
            return FabricInfo()
        clique = info.cliqueId
    summary = getattr(info, "healthSummary", 0)
    return judge_fabric(info.state, info.status, info.healthMask, summary, bytes(info.clusterUuid), clique)


def _read_version_4(module: Any, call: Callable[..., Any]) -> Any:
    info = module.c_nvmlGpuFabricInfo_v4_t()
    try:
        call("nvmlDeviceGetGpuFabricInfo_v4", ctypes.byref(info))
    except NvmlError:
        # A GPU without fabric, or a library without the function; the older query reports any other failure.
        return None
    return info


def _read_older(module: Any, ask: Callable[..., Any], call: Callable[..., Any]) -> Any:
    info = module.c_nvmlGpuFabricInfo_v3_t()
    try:
        call("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info))
    except NvmlError as error:
        if error.code in (module.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, module.NVML_ERROR_INVALID_ARGUMENT):
            info = module.c_nvmlGpuFabricInfo_v2_t()
        elif isinstance(error, NotSupportedError):
            return None
        if ask("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info)) is None:
            return None
    return info


def _unicast_clique(module: Any, info: Any) -> int | None:
    """Return the clique that older versions report: the first one of unicast pointers.

    NVML API reference, nvmlGpuFabricInfo_v4_t. The others are for multicast and for logical endpoints.
    """
    for entry in info.cliques[: info.numCliques]:
        if entry.type == module.NVML_GPU_FABRIC_CLIQUE_TYPE_UNICAST_POINTER:
            return int(entry.id)
    return None


def judge_fabric(state: int, status: int, mask: int, summary: int, cluster: bytes, clique: int | None) -> FabricInfo:
    """Turn the values of NVML's structure into domain, clique and issues."""
    if state == _NOT_SUPPORTED:
        return FabricInfo()
    if state in _STATES:
        message = f"its registration with the NVLink fabric {_STATES[state]}: CUDA fails on it"
        return FabricInfo(issues=(FabricIssue(NOT_READY, message, transient=True),))
    if state != _COMPLETED:
        # A newer driver: nothing is known to be wrong.
        return FabricInfo(unknown=f"fabric state {state}")
    # The status counts in this state only (nvml.h).
    if status != 0:
        message = f"its registration with the NVLink fabric failed with error {status}: CUDA fails on it"
        return FabricInfo(issues=(FabricIssue(NOT_READY, message),))
    issues = _health_issues(mask, summary)
    # A fabric of one host has no id: nothing to join.
    domain = _uuid(cluster.hex()) if any(cluster) else None
    return FabricInfo(domain, clique if domain else None, issues)


def _health_issues(mask: int, summary: int) -> tuple[FabricIssue, ...]:
    found = [text for shift, failure, text in _FLAGS if mask >> shift & 0x3 == failure]
    configuration = mask >> _CONFIGURATION_SHIFT & 0xF
    issues = []
    if configuration not in _CORRECT:
        text = _CONFIGURATION.get(configuration, f"reason {configuration}")
        issues.append(FabricIssue(NOT_READY, f"its configuration in the NVLink fabric is incorrect: {text}"))
    elif not found and summary in _SUMMARIES:
        # A newer driver may have a reason that is in none of the known bits.
        found.append(_SUMMARIES[summary])
    if found:
        issues.append(FabricIssue(DEGRADED, f"its NVLink fabric is degraded: {', '.join(found)}"))
    return tuple(issues)


def _uuid(text: str) -> str:
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
