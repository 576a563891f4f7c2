"""Information on one NVIDIA GPU, from NVML, or from the driver's procfs if NVML does not respond.

`backend` turns it into a device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dra_agent.diagnostic import Diagnostic, UnreadDiagnostic
from dra_agent.host import Host
from dra_agent.inventory.nvidia.fabric import FabricIssue, read_fabric
from dra_agent.inventory.nvidia.nvml_client import (
    GpuLostError,
    NoPermissionError,
    NotSupportedError,
    NvmlBusyError,
    NvmlClient,
    NvmlError,
    UnknownGpuError,
)
from dra_agent.inventory.sysfs import SysfsDir

ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    11: "DLA",
    12: "DLA2",
    13: "Rubin",
    15: "NPU3",
}
"""By nvmlDeviceArchitecture_t, in the spelling of NVIDIA's own DRA driver; 11 to 15 as nvml.h of driver 615."""

BRANDS = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
    17: "NvidiaDLA",
    18: "NvidiaVGameDev",
    19: "NvidiaNPU",
}
"""By nvmlBrandType_t of driver 615."""
_UNKNOWN = (0, 0xFFFF_FFFF)
"""NVML's values for an unknown brand or architecture."""

_CORES = {
    **dict.fromkeys([(3, 0), (3, 2), (3, 5), (3, 7)], 192),
    **dict.fromkeys([(5, 0), (5, 2), (5, 3), (6, 1), (6, 2)], 128),
    **dict.fromkeys([(6, 0), (7, 0), (7, 2), (7, 5), (8, 0)], 64),
    **dict.fromkeys([(8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 1), (10, 3), (11, 0), (12, 0), (12, 1)], 128),
}
"""CUDA cores per multiprocessor by compute capability (NVIDIA's cuda-samples, helper_cuda.h); NVML reports only the
cores. 10.1 is the number of Thor before CUDA 13, and 11.0 the one since."""

# nvmlMemoryErrorType_t and nvmlEccCounterType_t: since the driver was loaded.
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0
_MEMORY = "nvmlDeviceGetMemoryInfo"
_MAX_READS = 3
_RECOVERY_ACTION = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""


@dataclass(frozen=True, slots=True)
class DriverInfo:
    """Versions of the driver, as it spells them."""

    version: str | None = None
    cuda: str | None = None
    memory_limits: bool = False
    """True if NVML can limit the memory of a cgroup."""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU; None is unknown."""

    uuid: str | None = None
    name: str | None = None
    minor: int | None = None
    brand: str | None = None
    architecture: str | None = None
    compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    fabric_domain: str | None = None
    fabric_clique: int | None = None
    fabric_issues: tuple[FabricIssue, ...] = ()
    persistence: bool | None = None
    mig: bool | None = None
    memory_errors: int | None = None
    """Uncorrected, since the driver was loaded."""
    corrected_errors: int | None = None
    remap_pending: bool | None = None
    """A row of its memory is repaired at the next reset."""
    remap_failed: bool | None = None
    """A row of its memory could not be repaired: the GPU is to be replaced."""
    recovery: int | None = None
    """nvmlDeviceGpuRecoveryAction_t: 0 is none; not reported by drivers before 565."""
    memory_denied: bool = False
    """True if the process may not read its memory: with MIG instances, this needs the capability mig/monitor
    (k8s-device-plugin#1683)."""


def read_driver(nvml: NvmlClient) -> DriverInfo:
    """Read the versions from NVML."""
    cuda = _maybe(lambda: nvml.call("nvmlSystemGetCudaDriverVersion_v2"))
    return DriverInfo(
        version=_maybe(lambda: nvml.call("nvmlSystemGetDriverVersion")),
        # 12080 is 12.8.
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        memory_limits=bool(_maybe(lambda: nvml.call("has_memory_limits"))),
    )


def read_gpu(nvml: NvmlClient, handle: Any, address: str, problems: list[Diagnostic], *, driver: str | None) -> GpuInfo:
    """Read one GPU from NVML. Raises GpuLostError and CallTimeoutError; other failures cost one value each.

    `driver` is the driver's version, which determines some queries. Memory and multiprocessors depend on the MIG mode:
    if it changes meanwhile, the GPU is read again, and NvmlBusyError ends reads between which it changes every time.
    """
    for _ in range(_MAX_READS):
        found: list[Diagnostic] = []
        facts, is_settled = _read_gpu_once(nvml, handle, address, found, driver=driver)
        if is_settled:
            problems += found
            return facts
    raise NvmlBusyError("its MIG mode changes while it is read", where=address)


def _read_gpu_once(
    nvml: NvmlClient, handle: Any, address: str, problems: list[Diagnostic], *, driver: str | None
) -> tuple[GpuInfo, bool]:
    """Return what the GPU reports, and whether its MIG mode stayed the same."""
    denied: list[str] = []

    def call(name: str, *arguments: Any) -> Any:
        return nvml.call(name, handle, *arguments, about=address)

    def ask(name: str, *arguments: Any) -> Any:
        try:
            return call(name, *arguments)
        except NoPermissionError as error:
            denied.append(name)
            if name != _MEMORY:
                problems.append(UnreadDiagnostic(address, f"NVML: {error.message}", error.hint))
            return None
        except NotSupportedError:
            return None
        except (GpuLostError, UnknownGpuError):
            raise
        except NvmlError as error:
            problems.append(UnreadDiagnostic(address, f"NVML: {error.message}", error.hint))
            return None

    mig = ask("nvmlDeviceGetMigMode")
    memory = ask(_MEMORY)
    capability = ask("nvmlDeviceGetCudaComputeCapability")
    cores = ask("nvmlDeviceGetNumGpuCores")
    per_multiprocessor = _CORES.get(tuple(capability)) if capability else None
    persistence = ask("nvmlDeviceGetPersistenceMode")
    rows = ask("nvmlDeviceGetRemappedRows")

    def named(names: dict[int, str], value: int | None, kind: str) -> str | None:
        if value is not None and value not in _UNKNOWN and value not in names:
            problems.append(_unknown(address, f"{kind} {value}"))
        return names.get(value or 0)

    fabric = read_fabric(nvml.module, driver, ask, call)
    if fabric.unknown:
        problems.append(_unknown(address, fabric.unknown))
    if capability and per_multiprocessor is None:
        major, minor = capability
        problems.append(_unknown(address, f"compute capability {major}.{minor}"))
    facts = GpuInfo(
        uuid=ask("nvmlDeviceGetUUID"),
        name=ask("nvmlDeviceGetName"),
        minor=ask("nvmlDeviceGetMinorNumber"),
        brand=named(BRANDS, ask("nvmlDeviceGetBrand"), "brand"),
        architecture=named(ARCHITECTURES, ask("nvmlDeviceGetArchitecture"), "architecture"),
        compute_capability=tuple(capability) if capability else None,
        memory_bytes=memory.total if memory else None,
        multiprocessors=cores // per_multiprocessor if cores and per_multiprocessor else None,
        fabric_domain=fabric.domain,
        fabric_clique=fabric.clique,
        fabric_issues=fabric.issues,
        persistence=None if persistence is None else bool(persistence),
        mig=None if mig is None else bool(mig[0]),
        memory_errors=ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
        corrected_errors=ask("nvmlDeviceGetTotalEccErrors", _CORRECTED, _VOLATILE),
        remap_pending=bool(rows[2]) if rows else None,
        remap_failed=bool(rows[3]) if rows else None,
        recovery=_recovery(ask),
        memory_denied=_MEMORY in denied,
    )
    return facts, mig is None or list(mig) == list(ask("nvmlDeviceGetMigMode") or ())


def read_procfs(host: Host, address: str, problems: list[Diagnostic]) -> GpuInfo:
    """Return the driver's description of a GPU in /proc/driver/nvidia, which needs no NVML."""
    files = SysfsDir(host.proc / "driver/nvidia/gpus" / address, problems)
    information = files.key_values("information", ":")
    uuid, minor = information.get("GPU UUID", ""), information.get("Device Minor", "")
    mig = SysfsDir(host.proc / f"driver/nvidia/capabilities/gpu{minor}/mig", problems)
    return GpuInfo(
        # The driver prints question marks until something has opened the GPU.
        uuid=uuid if uuid and "?" not in uuid else None,
        name=information.get("Model") or None,
        minor=int(minor) if minor.isdecimal() else None,
        # The MIG mode is not reported, but instances exist in MIG mode only.
        mig=any(name.startswith("gi") for name in mig.names()) or None,
    )


def read_module(host: Host, problems: list[Diagnostic]) -> DriverInfo:
    """Return the version of the loaded kernel module."""
    return DriverInfo(version=SysfsDir(host.sysfs / "module/nvidia", problems).text("version"))


_CARDS = frozenset(
    {
        *((3, 0), (3, 5), (3, 7), (5, 0), (5, 2), (6, 0), (6, 1), (7, 0), (7, 5)),
        *((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)),
    }
)
_SYSTEMS_ON_CHIP = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (11, 0), (12, 1)})
"""Compute capabilities of Jetson modules (11.0 is Thor's) and of GB10, which no card has
(developer.nvidia.com/cuda-gpus)."""


def is_integrated(capability: tuple[int, int]) -> bool | None:
    """Return whether a GPU uses the memory of the CPU; None for compute capabilities that are newer than this table.

    GPUs of Grace Hopper and Grace Blackwell have memory of their own. NVML's report of the memory does not decide: with
    some drivers, it has the host's for GB10.
    """
    return True if capability in _SYSTEMS_ON_CHIP else False if capability in _CARDS else None


def has_tensor_cores(capability: tuple[int, int], device_id: str) -> bool:
    """Return True if a GPU has tensor cores: all since Volta, except the TU116 and TU117 chips of the Turing family."""
    number = int(device_id, 16)
    small_turing = 0x1F80 <= number <= 0x1FFF or 0x2180 <= number <= 0x21FF
    return capability >= (7, 0) and not (capability == (7, 5) and small_turing)


def _recovery(ask: Callable[..., Any]) -> int | None:
    values = ask("nvmlDeviceGetFieldValues", [_RECOVERY_ACTION])
    if values is None or values[0].nvmlReturn != 0:
        return None
    return int(values[0].value.uiVal)


def _unknown(address: str, value: str) -> Diagnostic:
    message = f"NVML reports {value}, which this version of the agent does not know"
    return Diagnostic(address, message, "update the agent; everything else of the GPU is published", severity="warning")


def _maybe(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except NvmlError:
        return None
