"""Names of vendors and products from the pci.ids file that distributions ship. Cosmetic: nothing decides by them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from dra_agent.topology.model import PciFunction

PLACES = (Path("/usr/share/misc/pci.ids"), Path("/usr/share/hwdata/pci.ids"))
"""Where Debian and Fedora keep the file, and with them most others."""

VENDORS = {
    "0x1002": "AMD",
    "0x1022": "AMD",
    "0x10b5": "PLX",
    "0x10de": "NVIDIA",
    "0x10ee": "Xilinx",
    "0x1172": "Altera",
    "0x144d": "Samsung",
    "0x14e4": "Broadcom",
    "0x15b3": "Mellanox",
    "0x1000": "Broadcom",
    "0x1af4": "virtio",
    "0x1bcf": "NEC",
    "0x1d0f": "AWS",
    "0x1da3": "Habana",
    "0x1ded": "Alibaba",
    "0x8086": "Intel",
}
"""Short names of the vendors that this agent meets most, for a host without the file."""

_NEXT_VENDOR = re.compile(rb"\n(?=[^\t#])")


class PciIds:
    """Looks products up in a pci.ids file; without one every product is unknown."""

    def __init__(self, content: bytes, known: Mapping[str, str] | None = None) -> None:
        """`known`: names by PCI address, which are used instead of those of the content."""
        self._content = content
        self._known = known or {}

    def with_known(self, known: Mapping[str, str]) -> PciIds:
        """Add names by PCI address."""
        return PciIds(self._content, known)

    @classmethod
    def of_this_machine(cls) -> PciIds:
        """The names that this machine's distribution ships, read once per process."""
        return _installed()

    def product(self, vendor_id: str, device_id: str) -> str | None:
        """The product's name, with the marketing name in brackets where there is one: "GH100 [H100 SXM5 80GB]"."""
        start = self._find(f"{vendor_id[2:]}  ", 0, len(self._content))
        if start is None:
            return None
        # A vendor's products are the indented lines below it, comments among them.
        behind = _NEXT_VENDOR.search(self._content, start)
        end = behind.start() if behind else len(self._content)
        line = self._find(f"\t{device_id[2:]}  ", start, end)
        if line is None:
            return None
        stop = self._content.find(b"\n", line)
        return self._content[line : stop if stop != -1 else None].decode(errors="replace").strip()

    def short(self, device: PciFunction) -> str:
        """A name for a small place: a known one, else the marketing name where there is one, else the ids."""
        name = self._known.get(device.pci_address) or self.product(device.vendor_id, device.device_id)
        vendor = VENDORS.get(device.vendor_id)
        if name is None:
            ids = f"{device.vendor_id[2:]}:{device.device_id[2:]}"
            return f"{vendor} {ids}" if vendor else ids
        if name.endswith("]") and "[" in name:
            name = name[name.rindex("[") + 1 : -1]
        return name if vendor is None or name.startswith(vendor) else f"{vendor} {name}"

    def _find(self, start_of_line: str, begin: int, end: int) -> int | None:
        """The offset behind a line's beginning."""
        needle = b"\n" + start_of_line.encode()
        found = self._content.find(needle, begin, end)
        return None if found == -1 else found + len(needle)


@cache
def _installed() -> PciIds:
    for place in PLACES:
        try:
            return PciIds(place.read_bytes())
        except OSError:
            continue
    return PciIds(b"")
