"""The first 256 bytes of a function's PCI configuration space, as far as tools that read it need them.

The agent never reads these (it wakes sleeping devices); lspci and hwloc do, and are the second opinion on a tree.
Layout after the PCI Local Bus specification's type 0 and type 1 headers and the PCI Express capability.
"""

from __future__ import annotations

import struct

from dra_agent.simulate.machine import Function, LinkState, bus_of, bus_range

_CAPABILITIES = 0x40
_EXPRESS = 0x10
_HAS_CAPABILITIES = 0x10
_BRIDGE_CLASS = 0x0604
_ENDPOINT, _ROOT_PORT, _UPSTREAM, _DOWNSTREAM = 0, 4, 5, 6


def header(function: Function, *, at_root: bool) -> bytes:
    """256 bytes: identity, bus numbers of a bridge, and the link in an Express capability."""
    pci = function.id
    space = bytearray(256)
    struct.pack_into("<HHHHI", space, 0, pci.vendor, pci.device, 0x0006, 0, pci.class_code << 8 | pci.revision)
    bridge = pci.class_code >> 8 == _BRIDGE_CLASS
    space[0x0E] = 1 if bridge else 0
    if bridge:
        secondary, subordinate = bus_range(function) or (0, 0)
        struct.pack_into("<BBB", space, 0x18, bus_of(function.address), secondary, subordinate)
    else:
        struct.pack_into("<HH", space, 0x2C, pci.subsystem_vendor, pci.subsystem_device)
    if function.link:
        struct.pack_into("<H", space, 0x06, _HAS_CAPABILITIES)
        space[0x34] = _CAPABILITIES
        _express(space, function.link, _kind(function, at_root) if bridge else _ENDPOINT)
    return bytes(space)


def _express(space: bytearray, link: LinkState, kind: int) -> None:
    struct.pack_into("<BBH", space, _CAPABILITIES, _EXPRESS, 0, 2 | kind << 4)
    most = (link.max_generation or link.generation) | (link.max_width or link.width) << 4
    struct.pack_into("<I", space, _CAPABILITIES + 0x0C, most)
    struct.pack_into("<H", space, _CAPABILITIES + 0x12, link.generation | link.width << 4)


def _kind(bridge: Function, at_root: bool) -> int:
    if at_root:
        return _ROOT_PORT
    # Below an upstream port there are only the switch's own downstream ports.
    return _UPSTREAM if any(child.id.class_code >> 8 == _BRIDGE_CLASS for child in bridge.children) else _DOWNSTREAM
