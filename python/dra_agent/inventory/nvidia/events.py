"""What NVML tells of a GPU between two looks: XIDs and memory errors, from one event set for all GPUs.

The set is asked without waiting, on the library's own worker, so that no call is out while the library is shut down and
started again. How severe an XID is, is dra_agent.health's to say.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any

from dra_agent.inventory.model import DeviceEvent
from dra_agent.inventory.nvidia.nvml_client import NotSupportedError, NvmlClient, NvmlError

Name = Callable[[str, Any, int, int], tuple[str, ...]]
"""Names the devices that an event is about: PCI address, handle, GPU instance, compute instance."""

log = logging.getLogger(__name__)

XID, DOUBLE_BIT = 0x8, 0x2
"""Of nvmlEventType: what the driver logs as an XID, and uncorrected errors of memory."""
TIMEOUT_MS = 10
"""Of nvmlReturn_t: nothing has happened."""
ABOUT = "events"
"""The key of these calls: one that hangs keeps no call about a GPU from being made."""
MAX_EVENTS = 256
"""Events that are taken at a time."""


class Events:
    """The event set of one library."""

    def __init__(self, nvml: NvmlClient, name: Name = lambda *_: ()) -> None:
        self._nvml = nvml
        self._name = name
        self._set: Any = None
        self._followed: dict[str, int] = {}
        """By PCI address: which handle is in the set. 0: this GPU tells no events."""

    @property
    def follows(self) -> bool:
        """Whether there is a set, so that what happens from now on is told."""
        return self._set is not None

    @property
    def hangs(self) -> bool:
        """Whether a question has not come back."""
        return self._nvml.is_stuck(ABOUT)

    def follow(self, handles: dict[str, Any]) -> None:
        """Put GPUs, by PCI address, into the set; those that are in it are not touched. Raises RetryableError."""
        for gone in self._followed.keys() - handles.keys():
            del self._followed[gone]
        for address, handle in handles.items():
            if self._followed.get(address) in (_number(handle), 0):
                continue
            self._followed[address] = self._register(handle)

    def take(self) -> list[DeviceEvent]:
        """Give what has happened. Raises HungError; an error of a GPU is left to whoever looks at it next."""
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
            kinds = (XID | DOUBLE_BIT) & self._call("nvmlDeviceGetSupportedEventTypes", handle)
            if kinds:
                self._call("nvmlDeviceRegisterEvents", handle, kinds, self._set)
                return _number(handle)
        except NotSupportedError:
            pass
        return 0

    def _fault(self, event: Any) -> DeviceEvent | None:
        number = _number(event.device)
        address = next((address for address, known in self._followed.items() if known == number), None)
        if address is None:
            return None
        if event.eventType == XID:
            cause, message = f"xid-{event.eventData}", f"NVIDIA's driver reported XID {event.eventData}"
        elif event.eventType == DOUBLE_BIT:
            cause, message = "ecc", "an uncorrected memory error"
        else:
            return None
        return DeviceEvent(
            address, cause, message, self._name(address, event.device, event.gpuInstanceId, event.computeInstanceId)
        )

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._nvml.call(name, *arguments, about=ABOUT)


def _number(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
