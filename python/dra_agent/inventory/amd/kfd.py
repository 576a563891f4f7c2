"""Reads the nodes of AMD's kernel fusion driver: compute units and memory of every GPU or partition.

Paths and keys: drivers/gpu/drm/amd/amdkfd/kfd_topology.c. Of PCI functions it knows their addresses, and which of them
can be partitioned.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.amd.xgmi import XgmiLinks
from dra_agent.inventory.interconnect import Interconnect
from dra_agent.inventory.mode_changes import ModeChanges
from dra_agent.inventory.sysfs import SysfsDir

NODES = "class/kfd/kfd/topology/nodes"
COMPUTE_MODE = "current_compute_partition"
"""Attribute of a PCI function: GPUs that can be partitioned have it, since the first kernel that has partitions."""

REBUILD_TIMEOUT_S = 2.0
"""Seconds for which a scan waits for the kernel to rebuild the directory of nodes: one after the other, for each node
that a GPU loses or gets. Chosen, not measured."""
SETTLE_S = 0.02
"""Seconds for which a changed directory must stay the same; the kernel creates a node in a fraction of that."""
RETRY_INTERVAL_S = 0.005
"""Seconds between two reads of a directory that is not complete."""
_FRAME_BUFFER_HEAPS = (1, 2)
"""HSA_MEM_HEAP_TYPE_FB_PUBLIC and _FB_PRIVATE: memory of the GPU."""


@dataclass(frozen=True, slots=True)
class KfdNode:
    """One GPU, or one partition of a GPU."""

    node_id: int
    """It changes whenever a GPU with a lower number changes its mode."""
    pci_address: str
    """Of the whole GPU: partitions count themselves in the function number, and only one function exists."""
    render_minor: int | None
    compute_units: int | None
    isa: str | None
    """As compilers name it: "gfx942"."""
    unique_id: int | None
    """The board's, or since Linux 6.18 (commit 3a75edf93aae) the one of the partition's first die."""
    selects: bool
    """True if its `unique_id` is unique, so that ROCR_VISIBLE_DEVICES selects this node by it."""
    hive_id: int | None
    """The same for all GPUs that XGMI links connect."""
    xcc_count: int | None
    memory_bytes: int | None
    link_count: int = 0
    """Links to other nodes, CPUs among them."""
    interconnect: Interconnect | None = None
    """Of the whole GPU."""

    @property
    def uuid(self) -> str | None:
        """The id by which ROCR_VISIBLE_DEVICES selects the node; None if others have it, too, or it is not known."""
        return uuid_text(self.unique_id) if self.selects else None


def uuid_text(unique_id: int | None) -> str | None:
    """Return a `unique_id` as ROCr compares it, ignoring case (RvdFilter in core/runtime/amd_filter_device.cpp)."""
    return f"GPU-{unique_id:016x}" if unique_id is not None else None


class KfdReader:
    """Reads the nodes between two rebuilds of their directory.

    The kernel rebuilds it, for all GPUs, whenever one GPU gets or loses a node (kfd_topology_update_sysfs): it removes
    the nodes in order and creates them in order. `generation_id` is counted before a rebuild that removes a node, and
    after one that adds a node; fields of a new node are set after that. So the generation is not enough: nodes that
    were not seen before must stay for a moment and list all their links, a known generation must have its known
    numbers, and a GPU that had nodes must have some unless its driver or its mode is another one.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._accepted: _Version | None = None
        self._nodes: dict[str, list[KfdNode]] = {}
        """Of the accepted version."""
        self._modes: dict[str, str | None] = {}
        """The partition modes of the GPUs when it was accepted."""
        self._changes = ModeChanges()
        self._links = XgmiLinks(host.sysfs / NODES, host.sysfs / "bus/pci/devices")

    def follow(self, changes: ModeChanges) -> None:
        """Set the record of GPUs that the agent currently partitions, whose mode must not be read."""
        self._changes = changes

    def nodes(self, problems: list[Diagnostic]) -> dict[str, list[KfdNode]]:
        """Return the GPU nodes by PCI address, in the order of their ids. Waits for a rebuild, for a limited time."""
        deadline = time.monotonic() + REBUILD_TIMEOUT_S
        while True:
            found: list[Diagnostic] = []
            before = self._version(found)
            nodes, is_complete = _read(self._host, before.names, found)
            is_known = before == self._accepted and nodes == self._nodes
            is_complete = is_complete and (is_known or self._has_all_parts(nodes))
            addresses = {node.node_id: address for address, of_gpu in nodes.items() for node in of_gpu}
            links = self._links.listed(addresses, before.generation)
            # Last: a rebuild that begins before this is noticed.
            is_settled = is_complete and self._is_settled(before, is_known=is_known)
            if is_settled:
                break
            if time.monotonic() > deadline:
                found.append(
                    Diagnostic(
                        str(self._host.sysfs / NODES),
                        f"the compute topology of AMD GPUs changes while it is read, for {REBUILD_TIMEOUT_S:g} s",
                        "check the kernel log (dmesg): a change of a partition mode may not complete, or nodes or "
                        "links of a GPU may be hidden from the agent",
                        severity="warning",
                    )
                )
                break
            time.sleep(RETRY_INTERVAL_S)
        if not is_known:
            self._modes = {address: self._mode(address) for address in nodes if not self._changes.is_written(address)}
        self._accepted, self._nodes = before, nodes
        problems += found
        groups = self._links.groups(links, addresses, before.generation, is_settled=is_settled)
        return {
            address: [replace(node, interconnect=groups.get(address)) for node in of_gpu]
            for address, of_gpu in nodes.items()
        }

    def _is_settled(self, version: _Version, *, is_known: bool) -> bool:
        """Return True if the directory was complete in this version, and has not changed since."""
        known = self._accepted
        if is_known or version == _Version(None, ()):
            return version == self._version([])
        time.sleep(SETTLE_S)
        if known is not None and version.generation == known.generation is not None and version.names != known.names:
            return False
        return version.is_possible and version == self._version([])

    def _has_all_parts(self, nodes: dict[str, list[KfdNode]]) -> bool:
        """Return True unless a GPU lacks all nodes, or a node lacks links, that the kernel is about to create."""
        if any(self._must_have_nodes(address) for address in self._nodes.keys() - nodes.keys()):
            return False
        for node in itertools.chain.from_iterable(nodes.values()):
            # The kernel creates this directory, then the properties with the number of links, then each link, and then
            # its properties (kfd_build_sysfs_node_entry).
            links = self._host.sysfs / NODES / str(node.node_id) / "io_links"
            complete = [name for name in SysfsDir(links, []).names() if (links / name / "properties").exists()]
            if links.is_dir() and len(complete) < node.link_count:
                return False
        return True

    def _must_have_nodes(self, address: str) -> bool:
        """Return True for a GPU in the mode in which it had nodes."""
        if address not in self._modes or self._changes.is_written(address):
            return False
        function = SysfsDir(self._host.sysfs / "bus/pci/devices" / address, [])
        return function.link("driver") == "amdgpu" and self._mode(address) == self._modes[address]

    def _mode(self, address: str) -> str | None:
        return SysfsDir(self._host.sysfs / "bus/pci/devices" / address, []).text(COMPUTE_MODE)

    def _version(self, problems: list[Diagnostic]) -> _Version:
        folder = SysfsDir(self._host.sysfs / NODES, problems)
        generation = SysfsDir(folder.folder.parent, problems).text("generation_id")
        return _Version(generation, tuple(sorted(int(name) for name in folder.names() if name.isdecimal())))


@dataclass(frozen=True, slots=True)
class _Version:
    """The directory of nodes at one moment."""

    generation: str | None
    names: tuple[int, ...]

    @property
    def is_possible(self) -> bool:
        """The kernel numbers nodes from 0, and the first is a CPU; a recording without a generation may lack some."""
        return self.generation is None or (bool(self.names) and self.names == tuple(range(len(self.names))))


def gpu_nodes(host: Host, problems: list[Diagnostic]) -> dict[str, list[KfdNode]]:
    """Read the nodes once, even in the middle of a rebuild."""
    names = SysfsDir(host.sysfs / NODES, problems).names()
    return _read(host, sorted(int(name) for name in names if name.isdecimal()), problems)[0]


def _read(host: Host, names: Sequence[int], problems: list[Diagnostic]) -> tuple[dict[str, list[KfdNode]], bool]:
    """Return the GPU nodes by PCI address, and True if the kernel has completed all of them."""
    folder = SysfsDir(host.sysfs / NODES, problems)
    found = []
    is_complete = True
    for node_id in names:
        known = len(problems)
        # A cgroup that hides a GPU from the agent causes EPERM, which is reported.
        properties = folder.subdir(str(node_id)).key_values("properties")
        numbers = {key: int(value) for key, value in properties.items() if value.isdecimal()}
        if numbers.get("simd_count", 0) > 0:
            found.append((node_id, numbers))
            # Both are set after the files are created; a location of 0 is that of a function in a guest.
            is_complete = is_complete and 0 not in (numbers.get("vendor_id"), numbers.get("drm_render_minor"))
        elif not properties and len(problems) == known:
            is_complete = False
    ids = Counter(numbers.get("unique_id", 0) for _, numbers in found)
    functions = _Functions(host, ids)
    nodes: dict[str, list[KfdNode]] = {}
    for node_id, numbers in found:
        unique_id = numbers.get("unique_id", 0)
        node = _node(folder.subdir(str(node_id)), node_id, numbers, functions.address_of(numbers), ids[unique_id] == 1)
        nodes.setdefault(node.pci_address, []).append(node)
    return nodes, is_complete


class _Functions:
    """Finds the PCI function of a node.

    `location_id` has the number of the partition in the bits of the function (kfd_topology_add_device), or above bit 28
    in kernels that the thunk still reads. Partitions of one GPU therefore have the addresses of eight functions.
    """

    def __init__(self, host: Host, ids: Counter[int]) -> None:
        self._host = host
        self._ids = ids
        self._partitionable: dict[str, list[str]] = {}

    def address_of(self, numbers: dict[str, int]) -> str:
        location = numbers.get("location_id", 0) & 0xFFFF
        slot = f"{numbers.get('domain', 0):04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}"
        own = f"{slot}.{location & 7}"
        candidates = self._partitionable_at(slot)
        if candidates:
            # Several functions of one slot are virtual functions in a guest, each a separate GPU.
            return own if own in candidates else candidates[0]
        # Without sysfs (a recording): partitions that share the id of their board.
        return f"{slot}.0" if self._ids[numbers.get("unique_id", 0)] > 1 and numbers.get("unique_id") else own

    def _partitionable_at(self, slot: str) -> list[str]:
        if slot not in self._partitionable:
            devices = self._host.sysfs / "bus/pci/devices"
            addresses = [f"{slot}.{function}" for function in range(8)]
            self._partitionable[slot] = [one for one in addresses if (devices / one / COMPUTE_MODE).exists()]
        return self._partitionable[slot]


def _node(files: SysfsDir, node_id: int, numbers: dict[str, int], address: str, selects: bool) -> KfdNode:
    simd_per_cu = numbers.get("simd_per_cu", 0)
    unique_id = numbers.get("unique_id") or None
    return KfdNode(
        node_id=node_id,
        pci_address=address,
        render_minor=numbers.get("drm_render_minor") or None,
        compute_units=numbers["simd_count"] // simd_per_cu if simd_per_cu else None,
        isa=_isa(numbers.get("gfx_target_version", 0)),
        unique_id=unique_id,
        selects=selects and unique_id is not None,
        hive_id=numbers.get("hive_id") or None,
        xcc_count=numbers.get("num_xcc") or None,
        memory_bytes=_memory(files, numbers.get("mem_banks_count", 0)),
        link_count=numbers.get("io_links_count", 0),
    )


def _isa(version: int) -> str | None:
    """90402 is gfx942 and 90010 is gfx90a: two decimal digits each, the last one in hexadecimal."""
    if version <= 0:
        return None
    return f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}"


def _memory(files: SysfsDir, banks: int) -> int | None:
    total = 0
    for bank in range(min(banks, 64)):
        properties = files.subdir(f"mem_banks/{bank}").key_values("properties")
        heap, size = properties.get("heap_type", ""), properties.get("size_in_bytes", "")
        if heap.isdecimal() and int(heap) in _FRAME_BUFFER_HEAPS and size.isdecimal():
            total += int(size)
    return total or None


def merge_partitions(nodes: Sequence[KfdNode]) -> KfdNode:
    """Return the whole GPU of these partitions, with the id that they share, if they do."""
    first = nodes[0]
    has_one_id = all(node.unique_id == first.unique_id for node in nodes)
    return replace(
        first,
        unique_id=first.unique_id if has_one_id else None,
        selects=has_one_id and (first.selects or len(nodes) > 1),
        compute_units=_sum(node.compute_units for node in nodes),
        xcc_count=_sum(node.xcc_count for node in nodes),
        memory_bytes=_sum(node.memory_bytes for node in nodes),
    )


def partition_of(whole: KfdNode, parts: int) -> KfdNode:
    """Return one of the equal parts into which a mode divides a GPU."""
    return replace(
        whole,
        compute_units=whole.compute_units and whole.compute_units // parts,
        xcc_count=whole.xcc_count and whole.xcc_count // parts,
        memory_bytes=whole.memory_bytes and whole.memory_bytes // parts,
    )


def _sum(amounts: Iterable[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) or None
