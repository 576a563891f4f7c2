"""Which devices an event is about that NVML tells of a MIG instance: it names the instance by numbers only.

An instance that was there before the agent is a device, known by those numbers. One that was made for a claim is the
partition at its place on the GPU; the place is asked for when it is told of, and remembered, because a program that
dies of what happened takes its instance along.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dra_agent.errors import RetryableError
from dra_agent.inventory.model import Device
from dra_agent.inventory.nvidia.nvml_client import NvmlClient

NO_INSTANCE = 0xFFFF_FFFF
"""In place of an instance's number: the GPU as a whole, or every compute instance of a GPU instance."""
_PATIENCE = 1.0
"""Seconds; what is told of other GPUs waits meanwhile."""


class EventTargets:
    """The instances and partitions of the last look, and where instances lay."""

    def __init__(self, nvml: NvmlClient) -> None:
        self._nvml = nvml
        self._devices: dict[str, list[Device]] = {}
        self._places: dict[tuple[str, int], str] = {}
        """By address and GPU instance: "PROFILE:START:SIZE", as the identity `mig` of a partition has it."""

    def refresh(self, devices: Iterable[Device]) -> None:
        """Take note of what a look at all GPUs has found."""
        self._devices = {}
        for device in devices:
            self._devices.setdefault(device.pci_address, []).append(device)

    def remember(self, address: str, gpu_instance: int, place: str) -> None:
        """Take note of where an instance lies."""
        self._places[address, gpu_instance] = place

    def names(self, address: str, handle: Any, gpu_instance: int, compute_instance: int) -> tuple[str, ...]:
        """Name the devices that an instance is; none where it is no instance, or nobody knows which."""
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
            instance = self._ask(address, "nvmlDeviceGetGpuInstanceById", handle, gpu_instance)
            info = self._ask(address, "nvmlGpuInstanceGetInfo", instance)
        except RetryableError:
            return self._places.get((address, gpu_instance))
        self.remember(address, gpu_instance, f"{info.profileId}:{info.placement.start}:{info.placement.size}")
        return self._places[address, gpu_instance]

    def _ask(self, address: str, name: str, *arguments: Any) -> Any:
        return self._nvml.call(name, *arguments, about=address, timeout=_PATIENCE)
