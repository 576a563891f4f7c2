"""Events of NVML between two scans: XIDs and memory errors, from one event set for all GPUs.

The set is polled without waiting, on the library's worker, so that no call is pending while the library is shut down
and started again. `dra_agent.health` defines the severity of XIDs.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterable
from typing import Any

from dra_agent.errors import RetryableError
from dra_agent.inventory.model import Device, DeviceEvent
from dra_agent.inventory.nvidia.nvml_client import NotSupportedError, NvmlClient, NvmlError

Name = Callable[[str, Any, int, int], tuple[str, ...]]
"""Names the devices that an event is about: PCI address, handle, GPU instance, compute instance."""

log = logging.getLogger(__name__)

XID, DOUBLE_BIT = 0x8, 0x2
"""Bits of nvmlEventType: XIDs, and uncorrected memory errors."""
_CAUSES = {
    DOUBLE_BIT: ("ecc", "an uncorrected memory error"),
    0x400: ("", "a row of memory was noted for repair"),
    0x800: ("row-remap-failed", "a row of memory could not be noted for repair"),
    0x1000: ("memory-poison", "a program read memory with an uncorrected error; the error is contained"),
    0x2000: ("memory-poison", "a program read memory with an uncorrected error; the error is not contained"),
    0x4000: ("gpu-unavailable", "NVIDIA's driver reported that the GPU is unavailable"),
    0x8000: ("", "NVIDIA's driver changed the recovery that it requests"),
}
"""Cause and message of an event; without a cause, the next scan reads the change. 0x400 to 0x2000 since driver
560, 0x4000 and 0x8000 since 565 (change log of NVML)."""
_RECOVERY_ACTION_CHANGED = 154
"""GPU_RECOVERY_ACTION_CHANGED: the action may also have become "none" (NVIDIA's XID catalog)."""
TIMEOUT_MS = 10
"""Of nvmlReturn_t: nothing has happened."""
INVALID_ARGUMENT = 2
"""Of nvmlReturn_t."""
ABOUT = "events"
"""The lane of these calls: one that hangs does not block calls about a GPU."""
MAX_EVENTS = 256
"""Events that are taken at a time."""


class Events:
    """The event set of one library."""

    def __init__(self, nvml: NvmlClient, name: Name = lambda *_: ()) -> None:
        self._nvml = nvml
        self._name = name
        self._set: Any = None
        self._followed: dict[str, int] = {}
        """By PCI address: the handle in the set. 0: this GPU reports no events."""

    @property
    def follows(self) -> bool:
        """True if an event set exists, so that further events are reported."""
        return self._set is not None

    @property
    def hangs(self) -> bool:
        """True if a poll is pending."""
        return self._nvml.is_hung(ABOUT)

    def follow(self, handles: dict[str, Any]) -> None:
        """Register GPUs, by PCI address; registered ones are not changed. Raises RetryableError."""
        for gone in self._followed.keys() - handles.keys():
            del self._followed[gone]
        for address, handle in handles.items():
            if self._followed.get(address) in (_number(handle), 0):
                continue
            self._followed[address] = self._register(handle)

    def take(self) -> list[DeviceEvent]:
        """Return the events. Raises CallTimeoutError; an error of a GPU is left to the next scan."""
        faults: list[DeviceEvent] = []
        while self._set is not None and len(faults) < MAX_EVENTS:
            try:
                event = self._call("nvmlEventSetWait_v2", self._set, 0)
            except NvmlError as error:
                if error.code != TIMEOUT_MS:
                    log.debug("NVML's events", extra={"reason": str(error)})
                break
            fault = self._fault(event)
            if fault is not None:
                faults.append(fault)
        return faults

    def forget(self) -> None:
        """Drop the set, as the library does when it is shut down."""
        self._set = None
        self._followed.clear()

    def _register(self, handle: Any) -> int:
        try:
            if self._set is None:
                self._set = self._call("nvmlEventSetCreate")
            supported = self._call("nvmlDeviceGetSupportedEventTypes", handle)
            basic = supported & (XID | DOUBLE_BIT)
            all_kinds = supported & (XID | sum(_CAUSES))
            if all_kinds and self._try_register(handle, all_kinds):
                return _number(handle)
            if basic and self._try_register(handle, basic):
                return _number(handle)
        except NotSupportedError:
            pass
        return 0

    def _try_register(self, handle: Any, kinds: int) -> bool:
        """Return True if the kinds are registered: a library may support fewer than it names."""
        try:
            self._call("nvmlDeviceRegisterEvents", handle, kinds, self._set)
        except NvmlError as error:
            if not isinstance(error, NotSupportedError) and error.code != INVALID_ARGUMENT:
                raise
            return False
        return True

    def _fault(self, event: Any) -> DeviceEvent | None:
        number = _number(event.device)
        address = next((address for address, known in self._followed.items() if known == number), None)
        if address is None:
            return None
        if event.eventType == XID:
            # The scan that follows reads the action itself.
            cause = "" if event.eventData == _RECOVERY_ACTION_CHANGED else f"xid-{event.eventData}"
            message = f"NVIDIA's driver reported XID {event.eventData}"
        elif event.eventType in _CAUSES:
            cause, message = _CAUSES[event.eventType]
        else:
            log.warning("NVML reports an event of an unknown type", extra={"gpu": address, "type": event.eventType})
            return None
        return DeviceEvent(
            address, cause, message, self._name(address, event.device, event.gpuInstanceId, event.computeInstanceId)
        )

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._nvml.call(name, *arguments, about=ABOUT)


def _number(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


NO_INSTANCE = 0xFFFF_FFFF
"""In place of an instance's number: the GPU as a whole, or every compute instance of a GPU instance."""
_CALL_TIMEOUT_S = 1.0
"""Timeout in seconds; events of other GPUs wait for it."""


class EventTargets:
    """The instances and partitions of the last look, and where instances lay."""

    def __init__(self, nvml: NvmlClient) -> None:
        self._nvml = nvml
        self._devices: dict[str, list[Device]] = {}
        self._places: dict[tuple[str, int], str] = {}
        """By address and GPU instance: "PROFILE:START:SIZE", as the identity `mig` of a partition has it."""

    def refresh(self, devices: Iterable[Device]) -> None:
        """Record the result of a scan of all GPUs."""
        self._devices = {}
        for device in devices:
            self._devices.setdefault(device.pci_address, []).append(device)

    def remember(self, address: str, gpu_instance: int, place: str) -> None:
        """Record the placement of an instance."""
        self._places[address, gpu_instance] = place

    def names(self, address: str, handle: Any, gpu_instance: int, compute_instance: int) -> tuple[str, ...]:
        """Return the names of an instance's devices; empty for no or an unknown instance."""
        if gpu_instance == NO_INSTANCE:
            return ()
        devices = self._devices.get(address, [])
        found = [
            device.name
            for device in devices
            if device.identity.get("gpu_instance") == str(gpu_instance)
            and compute_instance in (NO_INSTANCE, int(device.identity.get("compute_instance", NO_INSTANCE)))
        ]
        if not found and any("mig" in device.identity for device in devices):
            place = self._place(address, handle, gpu_instance)
            found = [device.name for device in devices if place and device.identity.get("mig") == place]
        return tuple(found)

    def _place(self, address: str, handle: Any, gpu_instance: int) -> str | None:
        try:
            instance = self._query(address, "nvmlDeviceGetGpuInstanceById", handle, gpu_instance)
            info = self._query(address, "nvmlGpuInstanceGetInfo", instance)
        except RetryableError:
            return self._places.get((address, gpu_instance))
        self.remember(address, gpu_instance, f"{info.profileId}:{info.placement.start}:{info.placement.size}")
        return self._places[address, gpu_instance]

    def _query(self, address: str, name: str, *arguments: Any) -> Any:
        return self._nvml.call(name, *arguments, about=address, timeout=_CALL_TIMEOUT_S)
