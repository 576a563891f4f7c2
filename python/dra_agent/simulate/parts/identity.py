"""Names that each real device has of its own (UUIDs, GUIDs, MAC addresses); a rebuild gives the same."""

from __future__ import annotations

import hashlib
import uuid as uuids

_NAMESPACE = uuids.UUID("6b2f1c0e-5d43-5f0a-9c1e-0d7a4e8f2b11")


def uuid(machine: str, kind: str, number: int) -> str:
    """A UUID."""
    return str(uuids.uuid5(_NAMESPACE, f"{machine}/{kind}/{number}"))


def serial_number(machine: str, number: int) -> str:
    """Thirteen digits, as NVIDIA's boards have."""
    return f"165{_digest(machine, 'serial', number) % 10**10:010d}"


def guid(machine: str, number: int) -> str:
    """A node GUID of an RDMA device as sysfs prints it, with Mellanox' prefix."""
    low = _digest(machine, "guid", number) & 0xFFFFFFFF
    return f"a088:c203:{low >> 16:04x}:{low & 0xFFFF:04x}"


def mac(machine: str, number: int, prefix: str = "a0:88:c2") -> str:
    """An Ethernet address."""
    low = _digest(machine, "mac", number) & 0xFFFFFF
    return f"{prefix}:{low >> 16:02x}:{low >> 8 & 0xFF:02x}:{low & 0xFF:02x}"


def _digest(machine: str, kind: str, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{machine}/{kind}/{number}".encode()).digest()[:8])


def number(machine: str, kind: str, which: int) -> int:
    """A 64-bit number that is never 0."""
    return _digest(machine, kind, which) | 1
