"""Receive steering rules of an interface (`ethtool -n`), which netlink does not have (linux/ethtool.h).

A rule of a container would still direct or drop packets for the next one: adapters keep rules when the interface moves.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import socket
import struct
from contextlib import suppress

from dra_agent.device_setup.link import TooManyError

_SIOCETHTOOL = 0x8946
_COUNT, _RULE, _ALL, _DELETE = 0x2E, 0x2F, 0x30, 0x31
"""ETHTOOL_GRXCLSRLCNT, ETHTOOL_GRXCLSRULE, ETHTOOL_GRXCLSRLALL and ETHTOOL_SRXCLSRLDEL."""
_BYTES, _RULE_OFFSET, _LOCATION_OFFSET, _COUNT_OFFSET, _LOCATIONS_OFFSET = 192, 16, 176, 184, 188
"""Size and offsets of struct ethtool_rxnfc."""
_NUMBER = struct.Struct("=I")
MAX_RULES = 1 << 12
"""Maximum rules that are recorded; the record of an interface is limited."""


def read(index: int) -> dict[int, str] | None:
    """Return a digest of each rule by its location; None if the driver has no rules, or does not list them.

    Raises TooManyError.
    """
    try:
        count = _NUMBER.unpack_from(_ask(index, _COUNT), _COUNT_OFFSET)[0]
        if count > MAX_RULES:
            raise TooManyError(count, "steering rules", MAX_RULES)
        listed = _ask(index, _ALL, count=count, room=count) if count else bytes(_BYTES)
        found = min(_NUMBER.unpack_from(listed, _COUNT_OFFSET)[0], count)
        locations = struct.unpack_from(f"={found}I", listed, _LOCATIONS_OFFSET)
        return {one: _digest(_ask(index, _RULE, location=one)) for one in locations}
    except OSError:
        return None


def restore(index: int, before: dict[int, str]) -> tuple[list[str], list[str]]:
    """Delete other rules. Return those that were deleted, and what still differs, both as text."""
    changed: list[str] = []
    try:
        now = read(index)
    except TooManyError as error:
        return [], [f"steering rules (`ethtool -n`): {error}"]
    if now is None:
        return [], ["steering rules (`ethtool -n`) cannot be read"]
    for location, rule in now.items():
        if before.get(location) == rule:
            continue
        with suppress(OSError):  # it is still there, below
            _ask(index, _DELETE, location=location)
            changed.append(f"steering rule {location} deleted")
    left = read(index)
    if left == before:
        return changed, []
    return changed, [f"steering rules (`ethtool -n`): {_numbers(left)}, not as before ({_numbers(before)})"]


def _numbers(rules: dict[int, str] | None) -> str:
    return ", ".join(map(str, sorted(rules))) if rules else "none"


def _digest(answer: bytes) -> str:
    return hashlib.sha256(answer[_RULE_OFFSET:_COUNT_OFFSET]).hexdigest()[:16]


def _ask(index: int, command: int, *, location: int = 0, count: int = 0, room: int = 0) -> bytes:
    """Return the answer, a struct ethtool_rxnfc with `room` locations; raises the kernel's OSError."""
    data = ctypes.create_string_buffer(_BYTES + room * _NUMBER.size)
    _NUMBER.pack_into(data, 0, command)
    _NUMBER.pack_into(data, _LOCATION_OFFSET, location)
    _NUMBER.pack_into(data, _COUNT_OFFSET, count)
    name = os.fsencode(socket.if_indextoname(index))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("@16sP16x", name, ctypes.addressof(data)))
    return data.raw
