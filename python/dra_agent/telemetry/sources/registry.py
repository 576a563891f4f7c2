"""Finds the sources of a device, and loads them on first use."""

from __future__ import annotations

from typing import Any

from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.inventory.vendors import gpu_vendor, vendor_module
from dra_agent.telemetry.model import TelemetrySource
from dra_agent.telemetry.process_use import ProcessSource

_FAMILIES = {"nic": "network"}


class SourceRegistry:
    """The sources of one host; used by one thread."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._loaded: dict[str, TelemetrySource | None] = {}
        """By module; None for a vendor without a source."""
        self._processes: dict[str, ProcessSource] = {}

    def source_of(self, device: Device) -> TelemetrySource | None:
        """Return the source that can read a device now; None if there is none."""
        is_known_gpu = device.family == "gpu" and gpu_vendor(device.vendor) is not None
        name = device.vendor if is_known_gpu else _FAMILIES.get(device.family)
        if name is None or not device.observed or any(node.role == "vfio" for node in device.nodes):
            return None
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._host)
        source = self._loaded[name]
        return source if source is not None and source.can_read(device) else None

    def processes_of(self, device: Device) -> ProcessSource | None:
        """Return the source that can read the processes of a device now; None if there is none."""
        vendor = gpu_vendor(device.vendor) if device.family == "gpu" and device.observed else None
        name = None if vendor is None else vendor.process_source
        if name is None:
            return None
        if name not in self._processes:
            loaded: ProcessSource = _load(name, self._host)
            self._processes[name] = loaded
        source = self._processes[name]
        return source if source.can_read(device) else None

    def loaded(self) -> set[str]:
        """Return the names of the sources that a device has needed so far."""
        return {source.name for source in (*self._loaded.values(), *self._processes.values()) if source is not None}

    def close(self) -> None:
        """Close the libraries of the sources."""
        for source in (*self._loaded.values(), *self._processes.values()):
            if source is not None:
                source.close()
        self._loaded.clear()
        self._processes.clear()


def _load(name: str, host: Host) -> Any:
    """Return the source of a module; None if there is no such module."""
    module = vendor_module("dra_agent.telemetry.sources", name)
    return None if module is None else module.make(host)
