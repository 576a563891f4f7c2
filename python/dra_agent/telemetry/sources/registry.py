"""Finds the source of a device, and loads it on first use."""

from __future__ import annotations

from importlib import import_module

from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.telemetry.model import TelemetrySource

_VENDORS = {("gpu", vendor): vendor for vendor in ("amd", "intel", "nvidia")}
_FAMILIES = {"nic": "network"}


class SourceRegistry:
    """The sources of one host; used by one thread."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._loaded: dict[str, TelemetrySource] = {}

    def source_of(self, device: Device) -> TelemetrySource | None:
        """Return the source that can read a device now; None if there is none."""
        name = _VENDORS.get((device.family, device.vendor)) or _FAMILIES.get(device.family)
        if name is None or not device.observed or any(node.role == "vfio" for node in device.nodes):
            return None
        source = self._loaded.get(name)
        if source is None:
            module = import_module(f"dra_agent.telemetry.sources.{name}")
            source = self._loaded[name] = module.make(self._host)
        return source if source.can_read(device) else None

    def close(self) -> None:
        """Close the libraries of the sources."""
        for source in self._loaded.values():
            source.close()
        self._loaded.clear()
