"""Whether a device that a claim holds can still be used."""

from __future__ import annotations

from dra_agent.inventory.model import Device


def unusable_reason(device: Device | None) -> str:
    """Return why containers cannot use a device of a prepared claim; "" where nothing is known against it."""
    if device is None:
        return "is not on this host now"
    if device.health == "unhealthy":
        return device.health_reason or "is unhealthy"
    return ""
