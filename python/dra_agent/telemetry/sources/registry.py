"""Finds the source of a device, and loads it on first use."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.inventory.vendors import GPU_VENDORS
from dra_agent.telemetry.model import TelemetrySource

_FAMILIES = {"nic": "network"}


class SourceRegistry:
    """The sources of one host; used by one thread."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._loaded: dict[str, TelemetrySource | None] = {}
        """By module; None for a vendor without a source."""

    def source_of(self, device: Device) -> TelemetrySource | None:
        """Return the source that can read a device now; None if there is none."""
        is_known_gpu = device.family == "gpu" and device.vendor in GPU_VENDORS.values()
        name = device.vendor if is_known_gpu else _FAMILIES.get(device.family)
        if name is None or not device.observed or any(node.role == "vfio" for node in device.nodes):
            return None
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._host)
        source = self._loaded[name]
        return source if source is not None and source.can_read(device) else None

    def close(self) -> None:
        """Close the libraries of the sources."""
        for source in self._loaded.values():
            if source is not None:
                source.close()
        self._loaded.clear()


def _load(name: str, host: Host) -> TelemetrySource | None:
    module = f"dra_agent.telemetry.sources.{name}"
    if find_spec(module) is None:
        return None
    source: TelemetrySource = import_module(module).make(host)
    return source
