"""Surveys NVML beyond the agent's calls: each version of a query, and each return code.

It changes nothing. MIG profiles and placements depend on mode and permissions in ways that differ between drivers, so
all numbers are queried, in both versions of the call.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from dra_agent.deadline import Deadline
from dra_agent.inventory.nvidia.nvml_client import WHOLE, CallTimeoutError, NvmlClient, NvmlError

PROFILES = range(18)
"""Numbers of GPU instance profiles (nvml.h: NVML_GPU_INSTANCE_PROFILE_*)."""
_MAX_PLACEMENTS = 32
_MAX_INSTANCES = 16
_GPU_CALLS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    *((f"nvmlDeviceGet{name}", ()) for name in ("UUID", "Name", "PciInfo", "MinorNumber", "Brand", "Architecture")),
    *((f"nvmlDeviceGet{name}", ()) for name in ("PersistenceMode", "ComputeMode", "MigMode", "MemoryInfo")),
    *((f"nvmlDeviceGet{name}", ()) for name in ("VirtualizationMode", "NumaNodeId", "SupportedEventTypes")),
    *((f"nvmlDeviceGet{name}", ()) for name in ("MaxMigDeviceCount", "NumGpuCores", "CudaComputeCapability")),
    *((f"nvmlDeviceGet{name}", ()) for name in ("CurrPcieLinkGeneration", "MaxPcieLinkGeneration")),
    *((f"nvmlDeviceGet{name}", ()) for name in ("CurrPcieLinkWidth", "MaxPcieLinkWidth", "EccMode")),
)
MEMORY_V2 = 0x2000028
"""nvmlMemory_v2: the version number with the structure's size, 40 bytes (nvml.h: NVML_STRUCT_VERSION)."""
_RECOVERY_ACTION = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""
_FABRIC = ("c_nvmlGpuFabricInfo_v2_t", "c_nvmlGpuFabricInfo_v3_t")


@dataclass(frozen=True, slots=True)
class Response:
    """One call of the survey."""

    gpu: str
    """PCI address as sysfs writes it; "" for the library."""
    call: str
    """Name and arguments, for messages."""
    code: int | None
    """nvmlReturn_t; None where there was no response in time, or the binding does not have the call."""
    value: Any
    """A number, a text, or the fields of a structure."""
    error: str = ""
    ms: float = 0.0
    """Milliseconds until the response."""


def survey(nvml: NvmlClient, addresses: Iterable[str], deadline: Deadline) -> Iterator[Response]:
    """Query the library and these GPUs. A GPU that does not respond in time is not queried further."""
    yield from _Subject(nvml, "", None).responses(
        [("nvmlSystemGetDriverVersion", ()), ("nvmlSystemGetNVMLVersion", ()), ("nvmlDeviceGetCount", ())], deadline
    )
    handles: dict[str, Any] = {}
    for address in addresses:
        domain, _, rest = address.partition(":")
        bus_id = f"{int(domain, 16):08X}:{rest.upper()}".encode()
        found = _Subject(nvml, address, None).ask("nvmlDeviceGetHandleByPciBusId", (bus_id,))
        if found.code != 0:
            yield found
            continue
        handles[address] = found.value
        yield from _Subject(nvml, address, found.value).responses(_gpu_calls(nvml.module), deadline)
    for one, handle in handles.items():
        others = [(other, found) for other, found in handles.items() if other > one]
        for other, found in others:
            asked = _Subject(nvml, one, handle).ask("nvmlDeviceGetTopologyCommonAncestor", (found,), shown=other)
            yield asked
            if asked.code is None or not deadline.remaining():
                return


def _gpu_calls(module: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    yield from _GPU_CALLS
    yield "nvmlDeviceGetMemoryInfo", (MEMORY_V2,)
    yield "nvmlDeviceGetFieldValues", ([_RECOVERY_ACTION],)
    for name in _FABRIC:
        if (kind := getattr(module, name, None)) is not None:
            yield "nvmlDeviceGetGpuFabricInfoV", (ctypes.byref(kind()),)
    yield "nvmlDeviceGetGpuFabricInfo_v4", (ctypes.byref(module.c_nvmlGpuFabricInfo_v4_t()),)
    for profile in PROFILES:
        yield "nvmlDeviceGetGpuInstanceProfileInfo", (profile, 1)
        yield "nvmlDeviceGetGpuInstanceProfileInfo", (profile, 2)


class _Subject:
    """The library or one GPU."""

    def __init__(self, nvml: NvmlClient, address: str, handle: Any) -> None:
        self._nvml = nvml
        self._address = address
        self._handle = handle

    def responses(self, calls: Iterable[tuple[str, tuple[Any, ...]]], deadline: Deadline) -> Iterator[Response]:
        placed: set[int] = set()
        for name, arguments in calls:
            if not deadline.remaining():
                yield Response(self._address, name, None, None, "the deadline of the survey has passed")
                return
            response = self.ask(name, arguments)
            yield response
            if response.code is None and "time" in response.error:
                return
            if name == "nvmlDeviceGetGpuInstanceProfileInfo" and response.code == 0:
                # Both versions: a driver may refuse the newer one while MIG mode is off.
                if (profile := response.value["id"]) not in placed:
                    yield from self._profile(profile)
                placed.add(profile)

    def ask(self, name: str, arguments: tuple[Any, ...], *, shown: str = "") -> Response:
        handle = () if self._handle is None else (self._handle,)
        text = f"{name}({shown or ', '.join(_plain(argument) for argument in arguments)})"
        began = time.monotonic()

        def response(code: int | None, value: Any = None, error: str = "") -> Response:
            return Response(self._address, text, code, value, error, round((time.monotonic() - began) * 1000, 3))

        try:
            value = self._nvml.call(name, *handle, *arguments, about=self._address or WHOLE)
        except CallTimeoutError as error:
            return response(None, error=f"not in time: {error.message}")
        except NvmlError as error:
            return response(error.code, error=error.message)
        except TypeError as error:
            return response(None, error=str(error))
        filled = [argument._obj for argument in arguments if hasattr(argument, "_obj")]  # noqa: SLF001 - ctypes has no public way from a reference to its object
        return response(0, _value(filled[0] if filled else value))

    def _profile(self, profile: int) -> Iterator[Response]:
        module: Any = self._nvml.module
        places = (module.c_nvmlGpuInstancePlacement_t * _MAX_PLACEMENTS)()
        count = ctypes.c_uint(_MAX_PLACEMENTS)
        asked = self.ask("nvmlDeviceGetGpuInstancePossiblePlacements", (profile, places, ctypes.byref(count)))
        value: Any = [(place.start, place.size) for place in places[: count.value]] if asked.code == 0 else None
        yield replace(asked, call=f"nvmlDeviceGetGpuInstancePossiblePlacements({profile})", value=value)
        handles = (module.c_nvmlGpuInstance_t * _MAX_INSTANCES)()
        found = ctypes.c_uint(_MAX_INSTANCES)
        asked = self.ask("nvmlDeviceGetGpuInstances", (profile, handles, ctypes.byref(found)))
        value = found.value if asked.code == 0 else None
        yield replace(asked, call=f"nvmlDeviceGetGpuInstances({profile})", value=value)
        asked = self.ask("nvmlDeviceGetGpuInstanceRemainingCapacity", (profile,))
        yield asked


def _value(value: Any) -> Any:
    """Return a structure as a dict, for reports; handles are not converted."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, ctypes._Pointer):
        return value
    if isinstance(value, ctypes.Array):
        return bytes(value).hex() if isinstance(value[0], int) else [_value(item) for item in value]
    if isinstance(value, ctypes.Union):
        return bytes(value).hex()
    if isinstance(value, ctypes.Structure):
        return {field[0]: _value(getattr(value, field[0])) for field in getattr(value, "_fields_", ())}
    if isinstance(value, ctypes._SimpleCData):
        return value.value
    return [_value(item) for item in value] if isinstance(value, list | tuple) else value


def _plain(argument: Any) -> str:
    inner = getattr(argument, "_obj", argument)
    return type(inner).__name__ if isinstance(inner, ctypes.Structure | ctypes.Array) else repr(_value(inner))
