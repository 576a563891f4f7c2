"""The XGMI links between AMD GPUs, as KFD lists them.

KFD lists a link for each two nodes of a hive (drivers/gpu/drm/amd/amdkfd/kfd_crat.c, kfd_fill_gpu_xgmi_link_to_gpu).
It does so when amdgpu initializes the GPUs: a link that fails later stays in the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dra_agent.inventory.interconnect import Interconnect, group_gpus, pair
from dra_agent.inventory.sysfs import SysfsDir

_XGMI = 11
"""CRAT_IOLINK_TYPE_XGMI."""
_MAX_LINKS = 256
"""Of one node: a host of eight GPUs in 64 partitions lists 65."""

Links = dict[tuple[str, str], int | None]
"""The number of links between two GPUs, by their addresses; None if it is not known."""


class XgmiLinks:
    """Reads the links once for each generation of KFD's topology."""

    def __init__(self, nodes: Path, functions: Path) -> None:
        """`nodes` and `functions` are the directories of KFD's nodes and of the PCI functions."""
        self._nodes = nodes
        self._functions = functions
        self._read_at: tuple[str | None, dict[int, str]] | None = None
        self._links: Links = {}
        self._groups: dict[str, Interconnect] = {}

    def listed(self, addresses: Mapping[int, str], generation: str | None) -> Links:
        """Return the links between GPUs now, given the addresses of nodes by their number; reads no generation twice.

        A link that cannot be read, or that ends at a node without an address, counts as none.
        """
        if generation is not None and self._read_at == (generation, addresses):
            return self._links
        return self._listed(addresses)

    def groups(
        self, listed: Links, addresses: Mapping[int, str], generation: str | None, *, is_settled: bool
    ) -> dict[str, Interconnect]:
        """Return the groups of GPUs by address; `is_settled` is false if the nodes changed while they were read.

        KFD has no nodes of a GPU while its partition mode changes, and no node at all at some moments of it. Such links
        stay, so that the groups of other GPUs stay.
        """
        if generation is None or not is_settled or self._read_at != (generation, addresses):
            present = set(addresses.values()) if is_settled else set()
            kept = {
                both: width
                for both, width in self._links.items()
                if not present.issuperset(both) and all((self._functions / one).exists() for one in both)
            }
            # KFD shows no number of links of a GPU that is divided; those of the other GPUs stay as they are.
            found = {both: self._links.get(both) if width is None else width for both, width in listed.items()}
            self._links = {**kept, **found}
            self._groups = group_gpus(self._links)
            self._read_at = (generation, dict(addresses)) if is_settled else None
        return self._groups

    def _listed(self, addresses: Mapping[int, str]) -> Links:
        # Partitions list the links of their GPU: the first node of each is enough.
        first: dict[str, int] = {}
        for node, address in sorted(addresses.items()):
            first.setdefault(address, node)
        listed: dict[tuple[str, str], dict[str, int | None]] = {}
        for address, node in first.items():
            folder = SysfsDir(self._nodes / str(node) / "io_links", [])
            for name in folder.names()[:_MAX_LINKS]:
                link = _numbers(folder.subdir(name))
                other = addresses.get(link.get("node_to", -1))
                if link.get("type") == _XGMI and other is not None and other != address:
                    listed.setdefault(pair(address, other), {})[address] = _width(link)
        # Both GPUs must list the link.
        return {
            both: min(widths) if len(widths := [one for one in ends.values() if one is not None]) == 2 else None
            for both, ends in listed.items()
            if len(ends) == 2
        }


def _numbers(folder: SysfsDir) -> dict[str, int]:
    return {key: int(value) for key, value in folder.key_values("properties").items() if value.isdecimal()}


def _width(link: Mapping[str, int]) -> int | None:
    """Return the links between two GPUs: the least bandwidth is that of one, the largest that of all of them together.

    Both are 0 between partitions of different GPUs, and where the kernel does not know them.
    """
    least, largest = link.get("min_bandwidth", 0), link.get("max_bandwidth", 0)
    return largest // least if least > 0 and largest >= least and largest % least == 0 else None
