"""The API's NetworkDeviceData of a device: its interface, hardware address and IP addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_agent.inventory.model import Device

_MAX_NAME_BYTES = 256
_MAX_HARDWARE_ADDRESS_BYTES = 128
_MAX_IPS = 16


def network_data(device: Device, ips: Sequence[str] = ()) -> dict[str, Any]:
    """Describe a NIC's interface on the host; empty for a device without one. `ips` are in CIDR notation.

    The limits are the API's (bytes of the names, number of addresses); values over them are omitted.
    """
    if device.family != "nic":
        return {}
    data: dict[str, Any] = {}
    name = device.identity.get("ifname", "")
    if 0 < len(name.encode()) <= _MAX_NAME_BYTES:
        data["interfaceName"] = name
    if name and ips:
        data["ips"] = list(dict.fromkeys(ips))[:_MAX_IPS]
    mac = device.attributes.get("mac")
    if mac is not None and mac.string and len(mac.string.encode()) <= _MAX_HARDWARE_ADDRESS_BYTES:
        data["hardwareAddress"] = mac.string
    return data
