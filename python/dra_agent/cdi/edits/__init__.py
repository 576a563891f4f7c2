"""The edits that a container needs for a device, one provider per vendor. Independent of claims."""

from __future__ import annotations

from dra_agent.cdi.edits.provider import DeviceEdits, EditProvider
from dra_agent.cdi.edits.registry import EditProviders

__all__ = ["DeviceEdits", "EditProvider", "EditProviders"]
