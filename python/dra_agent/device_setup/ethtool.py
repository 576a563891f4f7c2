"""Settings of an interface that ethtool(8) shows, over generic netlink (Linux 5.6, linux/ethtool_netlink.h).

A container with CAP_NET_ADMIN in the user namespace of its network can change all of them, and they stay when the
interface moves. Values are recorded, compared and written as the kernel returns them.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Mapping
from typing import NamedTuple

from dra_agent.device_setup.netlink_request import GENERIC, Connection, attribute, attributes, nest

Settings = dict[str, dict[int, bytes]]
"""By group ("rings") and attribute."""

_CONTROL, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2
_HEADER, _HEADER_INDEX, _HEADER_FLAGS = 1, 1, 3
"""The first attribute of each message, and two of its own."""
_COMPACT_BITSETS, _OMIT_REPLY = 1, 2
_BITSET_SIZE, _BITSET_VALUE, _BITSET_MASK = 2, 4, 5
_GENERIC_HEADER = struct.Struct("=BBH")
_U32 = struct.Struct("=I")
_ON = b"\x01"
_ALL = b"\xff" * 512
"""The mask of a bitset without one."""


class _Group(NamedTuple):
    get: int
    set: int
    option: str
    """The option of ethtool(8) that shows it."""
    values: tuple[int, ...] = ()
    """Attributes that can be set."""
    bitsets: tuple[int, ...] = ()
    """The same, with a bitset."""
    nested: tuple[int, ...] = ()
    """The same, with other attributes in them."""
    adjusted: Mapping[int, tuple[int, ...]] = {}
    """Attributes that the driver or the link partner changes while another one is on."""
    unknown: Mapping[int, bytes] = {}
    """Values of attributes that are unknown while the link is down."""
    other_request: bool = False
    """Whether a kernel without `set` has another request that sets them."""

    @property
    def all(self) -> tuple[int, ...]:
        return (*self.values, *self.bitsets, *self.nested)


_GROUPS = {
    "private flags": _Group(13, 14, "--show-priv-flags", bitsets=(2,)),
    "channels": _Group(17, 18, "-l", (6, 7, 8, 9)),
    "rings": _Group(15, 16, "-g", (6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17)),
    "coalescing": _Group(19, 20, "-c", tuple(range(2, 29)), adjusted={11: (2, 3), 12: (6, 7)}),
    "features": _Group(11, 12, "-k", bitsets=(3,)),
    "receive hashing": _Group(38, 48, "-x", (3, 4, 5, 6), nested=(8,), other_request=True),
    "pause frames": _Group(21, 22, "-a", (2, 3, 4), adjusted={2: (3, 4)}),
    "energy-efficient Ethernet": _Group(23, 24, "--show-eee", (5, 6, 7), (2,)),
    "forward error correction": _Group(29, 30, "--show-fec", (3,), (2,)),
    "link modes": _Group(
        4,
        5,
        "",
        (2, 5, 6, 7, 9),
        (3,),
        adjusted={2: (5, 6, 9)},
        unknown={5: b"\xff\xff\xff\xff", 6: b"\xff", 9: bytes(4)},
    ),
    "crossover": _Group(2, 3, "", (5,)),
    "wake-on-LAN": _Group(9, 10, "", bitsets=(2,)),
    "message level": _Group(7, 8, "", bitsets=(2,)),
    "module power mode": _Group(34, 35, "--show-module", (2,)),
    "hardware timestamps": _Group(46, 47, "--get-hwtimestamp-cfg", bitsets=(3, 4, 5), nested=(2,)),
}
"""In the order in which they are restored: private flags and channels change what the others apply to."""


def read(index: int) -> Settings | None:
    """Return the settings that the driver supports; None if the kernel does not have this interface, or rejects it."""
    try:
        with Connection(GENERIC) as kernel:
            family = _family(kernel)
            return {name: found for name, group in _GROUPS.items() if (found := _read(kernel, family, index, group))}
    except OSError:
        return None


def restore(index: int, before: Settings) -> tuple[list[str], list[str]]:
    """Write settings that differ. Return those that were changed, and those that still differ, both as text."""
    changed: list[str] = []
    differing: list[str] = []
    try:
        with Connection(GENERIC) as kernel:
            family = _family(kernel)
            for name in _GROUPS:
                if name in before:
                    _restore(kernel, family, index, name, before[name], changed, differing)
    except OSError as error:
        differing.append(f"the settings of ethtool cannot be read: {error.strerror or error}")
    return changed, differing


def _restore(
    kernel: Connection,
    family: int,
    index: int,
    name: str,
    before: dict[int, bytes],
    changed: list[str],
    differing: list[str],
) -> None:
    group = _GROUPS[name]
    wrong = changes(name, before, _read(kernel, family, index, group))
    if not wrong:
        return
    number = _write(kernel, family, index, group, wrong)
    if number == errno.EOPNOTSUPP and not group.other_request:
        return  # nor could a container set it: the link or the adapter has other values
    if changes(name, before, _read(kernel, family, index, group), written=True):
        shown = f" (`ethtool {group.option}`)" if group.option else " (`ethtool`)"
        differing.append(f"{name}{shown}: {os.strerror(number) if number else 'the driver keeps other values'}")
    else:
        changed.append(f"{name} restored")


def changes(name: str, before: dict[int, bytes], now: dict[int, bytes], *, written: bool = False) -> dict[int, bytes]:
    """Return what has to be set in a group by attribute, so that its settings are those of before.

    `written`: after a request to set them; some are shown only while the link is up.
    """
    group = _GROUPS[name]
    adjusted = {one for switch, others in group.adjusted.items() if before.get(switch) == _ON for one in others}
    found = {}
    for kind, value in before.items():
        if kind in adjusted or value == group.unknown.get(kind) or kind not in group.all:
            continue
        present = now.get(kind)
        if written and kind in group.unknown and present in (None, group.unknown[kind]):
            continue
        if kind in group.bitsets and present is not None:
            value = _changed_bits(value, present)
            if value:
                found[kind] = value
        elif present != value:
            found[kind] = value
    return found


def _read(kernel: Connection, family: int, index: int, group: _Group) -> dict[int, bytes]:
    try:
        (reply,) = kernel.request(family, _message(group.get, index, _COMPACT_BITSETS))
    except OSError:  # not supported by the driver, or not by the kernel
        return {}
    found = attributes(reply[_GENERIC_HEADER.size :])
    return {kind: value for kind, value in found.items() if kind in group.all}


def _write(kernel: Connection, family: int, index: int, group: _Group, values: dict[int, bytes]) -> int:
    """Return the number of the kernel's error, otherwise 0."""
    parts = [attribute(kind, value, nested=kind not in group.values) for kind, value in values.items()]
    try:
        kernel.request(family, _message(group.set, index, _OMIT_REPLY, *parts))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _changed_bits(before: bytes, now: bytes) -> bytes:
    """Return a bitset with those bits that have changed, and their values before; b"" without any.

    The mask of link modes and others has the supported bits, which can change, for example with the cable.
    """
    old, new = attributes(before), attributes(now)
    size = old.get(_BITSET_SIZE, b"")
    wanted, present = old.get(_BITSET_VALUE, b""), new.get(_BITSET_VALUE, b"")
    both = zip(wanted, present, old.get(_BITSET_MASK, _ALL), new.get(_BITSET_MASK, _ALL), strict=False)
    mask = bytes((one ^ other) & first & second for one, other, first, second in both)
    if not any(mask):
        return b""
    mask = mask.ljust(len(wanted), b"\0")
    value = bytes(one & bits for one, bits in zip(wanted, mask, strict=True))
    return attribute(_BITSET_SIZE, size) + attribute(_BITSET_VALUE, value) + attribute(_BITSET_MASK, mask)


def _message(command: int, index: int, flags: int, *parts: bytes) -> bytes:
    header = nest(_HEADER, (attribute(_HEADER_INDEX, _U32.pack(index)), attribute(_HEADER_FLAGS, _U32.pack(flags))))
    return _GENERIC_HEADER.pack(command, 1, 0) + header + b"".join(parts)


def _family(kernel: Connection) -> int:
    """Return the number of the family; raises the kernel's OSError without it."""
    (reply,) = kernel.request(_CONTROL, _GENERIC_HEADER.pack(_GET_FAMILY, 1, 0) + attribute(_FAMILY_NAME, b"ethtool\0"))
    return int.from_bytes(attributes(reply[_GENERIC_HEADER.size :])[_FAMILY_ID][:2], sys.byteorder)
