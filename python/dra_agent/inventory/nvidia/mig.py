"""The existing MIG instances of a GPU, from NVML and the driver's procfs. It creates and destroys none.

They change while NVML is queried, by claims or an administrator: then all are read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.nvidia.mig_access import has_capabilities
from dra_agent.inventory.nvidia.nvml_client import (
    NoPermissionError,
    NotSupportedError,
    NvmlClient,
    NvmlError,
    UnknownGpuError,
)
from dra_agent.inventory.nvidia.profiles import INVALID_ARGUMENT, profile_label
from dra_agent.inventory.sysfs import SysfsDir

_T = TypeVar("_T")
_MIB = 1 << 20
_MAX_READS = 3
"""An error in so many reads in a row is not caused by an instance that was just removed."""

_ENGINES = {
    "multiprocessors": "multiprocessorCount",
    "copyEngines": "sharedCopyEngineCount",
    "decoders": "sharedDecoderCount",
    "encoders": "sharedEncoderCount",
    "jpegEngines": "sharedJpegCount",
    "ofaEngines": "sharedOfaCount",
}
"""Capacities and the fields of nvmlDeviceAttributes_t that they come from."""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One compute instance, which a container can use."""

    uuid: str
    profile: str
    """As nvidia-smi shows it: "1g.10gb", or "1c.3g.40gb" where a GPU instance holds several."""
    parts: tuple[str | int, ...]
    """Suffix of its name after the GPU's: "mig", profile, first memory slice; "gi" and its id if that is unknown."""
    gpu_instance: int = 0
    compute_instance: int = 0
    """Their ids, as NVML numbers them."""
    memory_bytes: int | None = None
    engines: dict[str, int] = field(default_factory=dict)
    capability_minors: tuple[int, ...] = ()
    """Of the GPU instance and of the compute instance, below /dev/nvidia-caps."""
    alone: bool = True
    """True if its GPU instance has no other compute instance: all of them share one memory (MIG user guide)."""
    start: int | None = None
    """First memory slice; None: the process may not read it."""


class InstancesChangedError(NvmlError):
    """Instances have changed places in NVML's list while it was read."""


def retry_if_changed(list_once: Callable[[], _T]) -> _T:
    """Read again if an instance was removed, or MIG mode switched off, between list and query.

    For a removed handle NVML returns "Invalid Argument", "Not Found" or "Not Supported", as for queries
    that are wrong: an error that stays is raised as it is.
    """
    for _ in range(_MAX_READS - 1):
        try:
            return list_once()
        except (UnknownGpuError, NotSupportedError, InstancesChangedError):
            continue
        except NvmlError as error:
            if error.code != INVALID_ARGUMENT:
                raise
    return list_once()


def read_instances(
    nvml: NvmlClient, handle: Any, host: Host, address: str, minor: int | None, problems: list[Diagnostic]
) -> list[MigInstance]:
    """Read the instances of one GPU. Raises CallTimeoutError, GpuLostError and NvmlError."""

    def ask(name: str, *arguments: Any) -> Any:
        return nvml.call(name, *arguments, about=address)

    def list_once() -> tuple[list[MigInstance], list[Diagnostic]]:
        seen: list[Diagnostic] = []
        # All are listed before the first is queried: after a removal, later ones get other indexes, and one of them
        # would be skipped. So a removed one is listed too, and the query for it shows its removal.
        found = [_instance(ask, handle, listed, host, minor, seen) for listed in _listed(ask, handle)]
        if len({instance.uuid for instance in found}) < len(found):
            raise InstancesChangedError("NVML lists one MIG instance twice", 0)
        return found, seen

    instances, seen = retry_if_changed(list_once)
    problems += seen
    inside = Counter(instance.gpu_instance for instance in instances)
    return [replace(instance, alone=inside[instance.gpu_instance] == 1) for instance in instances]


def _listed(ask: Callable[..., Any], gpu: Any) -> list[Any]:
    found = []
    for index in range(ask("nvmlDeviceGetMaxMigDeviceCount", gpu)):
        try:
            found.append(ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index))
        except (UnknownGpuError, NotSupportedError):
            continue
    return found


def _instance(
    ask: Callable[..., Any], gpu: Any, instance: Any, host: Host, minor: int | None, problems: list[Diagnostic]
) -> MigInstance:
    gpu_instance = ask("nvmlDeviceGetGpuInstanceId", instance)
    compute_instance = ask("nvmlDeviceGetComputeInstanceId", instance)
    # "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    profile = ask("nvmlDeviceGetName", instance).rpartition(" ")[2]
    start = _start(ask, gpu, gpu_instance)
    attributes = ask("nvmlDeviceGetAttributes_v2", instance)
    place = f"gi{gpu_instance}" if start is None else start
    parts: tuple[str | int, ...] = ("mig", profile_label(profile), place)
    minors = capability_minors(host, minor, gpu_instance, compute_instance, problems)
    return MigInstance(
        # Queried last: if it responds, a missing entry of procfs is not caused by a removed instance.
        uuid=ask("nvmlDeviceGetUUID", instance),
        profile=profile,
        parts=(*parts, compute_instance) if compute_instance else parts,
        gpu_instance=gpu_instance,
        compute_instance=compute_instance,
        memory_bytes=attributes.memorySizeMB * _MIB,
        engines={name: getattr(attributes, field_) for name, field_ in _ENGINES.items()},
        capability_minors=minors,
        start=start,
    )


def _start(ask: Callable[..., Any], gpu: Any, gpu_instance: int) -> int | None:
    """Return the first memory slice. It does not follow from the id of the instance (DCGM#138)."""
    try:
        handle = ask("nvmlDeviceGetGpuInstanceById", gpu, gpu_instance)
    except NoPermissionError:
        return None
    start: int = ask("nvmlGpuInstanceGetInfo", handle).placement.start
    return start


def capability_minors(
    host: Host, minor: int | None, gpu_instance: int, compute_instance: int, problems: list[Diagnostic]
) -> tuple[int, ...]:
    """Return the minors of the nodes below /dev/nvidia-caps that open the two, by their ids and the GPU's minor."""
    if minor is not None and not has_capabilities(host, minor):
        return _numbered(host, minor, gpu_instance, compute_instance)
    found = []
    for folder in (f"gi{gpu_instance}", f"gi{gpu_instance}/ci{compute_instance}"):
        files = SysfsDir(host.proc / f"driver/nvidia/capabilities/gpu{minor}/mig" / folder, problems)
        text = files.key_values("access", ":").get("DeviceFileMinor", "")
        if text.isdecimal():
            found.append(int(text))
        else:
            problems.append(
                Diagnostic(
                    str(files.folder), "the driver names no device node of this MIG instance", "run `nvidia-smi -L`"
                )
            )
    return tuple(found)


def _numbered(host: Host, minor: int, gpu_instance: int, compute_instance: int) -> tuple[int, int]:
    """Return the minors from the driver's list, or by its formula: each GPU has 15 instances, each of these 8."""
    instance = f"gpu{minor}/gi{gpu_instance}/access"
    compute = f"gpu{minor}/gi{gpu_instance}/ci{compute_instance}/access"
    found: dict[str, int] = {}
    with suppress(OSError), (host.proc / "driver/nvidia-caps/mig-minors").open() as lines:
        for line in lines:
            name, _, number = line.partition(" ")
            if name in (instance, compute) and number.strip().isdecimal():
                found[name] = int(number)
                if len(found) == 2:
                    break
    # open-gpu-kernel-modules 595.45.04, kernel-open/nvidia/nv-caps.c: after "config" (1) and "monitor" (2).
    first = 3 + (minor * 15 + gpu_instance) * 9
    return found.get(instance, first), found.get(compute, first + 1 + compute_instance)
