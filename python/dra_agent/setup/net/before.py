"""How interfaces were before they were changed, on disk before they are: what a crash leaves is put back."""

from __future__ import annotations

import msgspec

MOST = 1 << 16
"""Bytes."""


class Before(msgspec.Struct, frozen=True):
    """One interface, as its claim found it; where that is damaged nobody knows it any more."""

    uid: str
    """The claim."""
    address: str
    """PCI address, by which it is found again."""
    ifname: str
    mtu: int
    up: bool
    name: str | None
    """What it is called in the container; None where it stays on the host."""
