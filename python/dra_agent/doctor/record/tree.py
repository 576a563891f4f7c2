"""Records the parts of /sys, /proc and /dev that the agent reads: attributes by name, with a size limit for each.

The names are those of the agent's readers (rust/topology, `inventory`, `doctor`). PCI configuration space is never
read, nor is the link state of a suspended function: both wake it (kernel: pci_config_pm_runtime_get in
drivers/pci/pci-sysfs.c, which newer kernels call for link attributes too).
"""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dra_agent.deadline import Deadline
from dra_agent.doctor.record.vendor import vendor_recordings
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory import neuron
from dra_agent.printable import printable
from dra_agent.recording import (
    MAX_CONTENT_BYTES,
    MAX_DEPTH,
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    Entry,
    Omission,
    is_inside,
)

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENODATA, errno.EOPNOTSUPP, errno.ENODEV})
"""The kernel's errors for an attribute that a device does not have, or does not have now."""

_FUNCTION = "bus/pci/devices/*"
_LINK_STATE = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
_IDENTITY = (
    *("uevent", "modalias", "class", "vendor", "device", "subsystem_vendor", "subsystem_device", "revision"),
    *("driver@", "iommu_group@", "numa_node", "local_cpulist", "power/runtime_status"),
    *("sriov_totalvfs", "sriov_numvfs", "physfn@", "virtfn*@", "removable"),
)
_NET = (
    *("address", "mtu", "type", "speed", "operstate", "flags", "carrier", "phys_port_name", "dev_port"),
    *("device@", "lower_*@", "upper_*@", "master@", "phy80211@", "uevent", "bonding/", "bridge/"),
)
_NODES = ("uevent", "dev")
_CLASSES = (
    *(f"net/*/{name}" for name in _NET),
    *(f"virtio*/net/*/{name}" for name in _NET),
    *(
        f"infiniband/*/ports/*/{name}"
        for name in ("link_layer", "state", "phys_state", "rate", "gids/0", "gid_attrs/ndevs/0")
    ),
    *("net/*/", "virtio*/net/*/", "infiniband/*/", "infiniband_verbs/*/", "drm/*/", "vfio-dev/*/"),
    *("accel/*/", "apex/*/", "hailo_chardev/*/", "hailo1x/*/", "uio/*/", "virtio*/drm/*/"),
    # Mediated devices, which are named by UUIDs.
    *("mdev_supported_types/", "*-*-*-*-*/"),
    *(f"{folder}/{name}" for folder in ("drm/*", "accel/*", "vfio-dev/*", "infiniband_verbs/*") for name in _NODES),
    # Character devices of a function's driver, three folders deep.
    *(f"{folder}/{name}" for folder in ("*", "*/*", "*/*/*") for name in ("dev+uevent",)),
)
_NEURON = "class/neuron_device"
SYSFS = (
    *("bus/pci/devices/", "class/net/", "class/iommu/", "fs/cgroup/", "kernel/iommu_groups/"),
    *(f"{_FUNCTION}/{name}" for name in (*_IDENTITY, *_CLASSES)),
    "bus/pci/drivers/*/",
    *("class/iommu/*@", "class/drm/*@", "class/net/*@", "class/accel/*@"),
    *(f"class/net/*/{name}" for name in _NET),
    "kernel/iommu_groups/*/devices/*@",
    "kernel/iommu_groups/*/name",
    *(f"devices/system/node/node*/{name}" for name in ("cpulist", "meminfo", "distance")),
    "devices/system/cpu/cpu*/topology/physical_package_id",
    "devices/platform/*/drm/*/",
    # GPUs and accelerators that are no PCI functions, and nodes without a parent.
    *(
        f"class/{nodes}/device/{name}"
        for nodes in ("drm/renderD*", "accel/accel*")
        for name in ("driver@", "subsystem@")
    ),
    *(f"class/{name}/*/{file}" for name in ("hailo_chardev", "hailo1x") for file in ("board_location", "uevent")),
    *(f"{_NEURON}/*/{name}" for name in ("", "device@", "core_count", *_NODES)),
    *("fs/cgroup/cgroup.controllers", "fs/cgroup/dmem.capacity"),
)
"""Patterns below /sys: `@` at the end records a link without following it, `/` a folder, `+uevent` the file next to it
too, but only if both exist. Those of vendors are in `vendors`."""
PROC = ("devices", "sys/kernel/osrelease", "net/route", "net/ipv6_route")
DEV = (
    *("iommu", "vfio/*", "vfio/devices/*"),
    *("neuron*", "mxcd", "kfd", "mkfd", "mtgpu*", "memx*", "dxrt*", "hl*", "hfi1_*", "hailo*", "h1x-*"),
    *("dri/*", "dri/by-path/*", "accel/*", "infiniband/*"),
)
_PRIVATE_FILES = frozenset({"vpd", "config", "rom", "serial_number"})
"""Never read, even if a pattern matches."""
_OF_LINKS = ("sys/bus/pci/devices", "sys/bus/platform/devices", "sys/class/")
"""Folders whose links a wildcard follows; elsewhere `driver` and `subsystem` would lead through the whole of /sys."""
_SKIPPED = frozenset({"power", "msi_irqs"})


class TreeReader:
    """Reads one host; `entries` has the results, also after the deadline."""

    def __init__(self, host: Host, deadline: Deadline) -> None:
        self._roots = {"sys": str(host.sysfs), "proc": str(host.proc), "dev": str(host.dev)}
        self._net = host.net
        self._deadline = deadline
        self._names: dict[str, list[str]] = {}
        self._entered: dict[tuple[str, bool], str | None] = {}
        self._bytes = 0
        self.entries: dict[str, Entry] = {}
        self.omitted: list[Omission] = []

    def collect(self) -> None:
        """Read everything. Raises RetryableError at the deadline, or at the bound of a recording."""
        vendors = vendor_recordings()
        functions = (f"{_FUNCTION}/{name}" for vendor in vendors for name in vendor.functions)
        for pattern in (*SYSFS, *functions, *(name for vendor in vendors for name in vendor.sysfs)):
            self._match("sys", pattern.split("/"))
        self._ancestors()
        for pattern in (*PROC, *(name for vendor in vendors for name in vendor.proc)):
            self._match("proc", pattern.split("/"))
        if self._net is not None:
            for name in ("route", "ipv6_route"):
                self._file(f"proc/net/{name}", str(self._net / name))
        for pattern in (*DEV, *(name for vendor in vendors for name in vendor.dev)):
            self._match("dev", pattern.split("/"))
        self._named_nodes()
        self._neuron_links()

    def _match(self, folder: str, parts: list[str]) -> None:
        """Follow a pattern from a folder, which is a path in the recording without links."""
        head, rest = parts[0], parts[1:]
        if not head:
            self._add(Entry(folder, folder=True))
            return
        link, both = head.endswith("@"), head.endswith("+uevent")
        head = head.removesuffix("@").removesuffix("+uevent")
        for name in self._find(folder, head):
            path = f"{folder}/{name}"
            if rest:
                if name not in _SKIPPED or head == name:
                    follow = "*" not in head or folder.startswith(_OF_LINKS)
                    # Many patterns pass through the folder of each function.
                    if (path, follow) not in self._entered:
                        self._entered[path, follow] = self._enter(path, follow=follow)
                    inside = self._entered[path, follow]
                    if inside is not None:
                        self._match(inside, rest)
            elif link:
                self._link(path)
            elif both:
                if os.path.exists(self._real(path)) and os.path.exists(self._real(f"{folder}/uevent")):  # noqa: PTH110
                    self._leaf(path)
                    self._leaf(f"{folder}/uevent")
            else:
                self._leaf(path)

    def _find(self, folder: str, pattern: str) -> list[str]:
        if "*" not in pattern:
            return [pattern]
        if folder not in self._names:
            self._deadline.check("/" + folder)
            try:
                names = sorted(os.listdir(self._real(folder)))  # noqa: PTH208 - names only
                self._names[folder] = [name for name in names if self._is_text(f"{folder}/{name}", name)]
            except OSError as error:
                self._omit(folder, error)
                self._names[folder] = []
        return fnmatch.filter(self._names[folder], pattern)

    def _enter(self, path: str, *, follow: bool) -> str | None:
        """Return the folder that a path leads to, and record the link; None where it leads nowhere."""
        try:
            mode = os.lstat(self._real(path)).st_mode
        except OSError as error:
            self._omit(path, error)
            return None
        if stat.S_ISDIR(mode):
            return path
        if not follow or not stat.S_ISLNK(mode) or (target := self._link(path)) is None:
            return None
        return os.path.normpath(f"{path.rpartition('/')[0]}/{target}")

    def _link(self, path: str) -> str | None:
        if path in self.entries:
            return self.entries[path].link
        try:
            target = os.readlink(self._real(path))  # noqa: PTH115 - a text
        except OSError as error:
            self._omit(path, error)
            return None
        if not self._is_text(path, target):
            return None
        if not is_inside(path, target):
            self.omitted.append(Omission("/" + path, "the link leaves the tree"))
            return None
        self._add(Entry(path, link=target))
        return target

    def _leaf(self, path: str) -> None:
        if path in self.entries:
            return
        if path.startswith("dev/"):
            self._node(path)
            return
        folder, _, name = path.rpartition("/")
        if name in _PRIVATE_FILES:
            return
        if name in _LINK_STATE and self._is_suspended(folder):
            return
        self._file(path, self._real(path))

    def _file(self, path: str, real: str) -> None:
        self._deadline.check("/" + path)
        try:
            descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return
                content = _read(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._omit(path, error)
            return
        if len(content) > MAX_CONTENT_BYTES:
            self.omitted.append(Omission("/" + path, f"larger than {MAX_CONTENT_BYTES >> 10} KiB"))
            return
        try:
            self._add(Entry(path, text=content.decode()))
        except UnicodeDecodeError:
            self._add(Entry(path, data=content.hex()))

    def _node(self, path: str) -> None:
        try:
            status = os.lstat(self._real(path))
        except OSError as error:
            self._omit(path, error)
            return
        number, mode = status.st_rdev, stat.S_IMODE(status.st_mode)
        if stat.S_ISLNK(status.st_mode):
            self._link(path)
        elif stat.S_ISCHR(status.st_mode):
            self._add(Entry(path, node=(os.major(number), os.minor(number), mode)))
        elif stat.S_ISREG(status.st_mode):
            # A simulated host without permission to create nodes.
            self._add(Entry(path, node=(0, 0, mode)))

    def _ancestors(self) -> None:
        """Add link state, and the node of the folders above each function: a bridge need not be in bus/pci/devices."""
        folders: dict[str, None] = {}
        for path, entry in list(self.entries.items()):
            if path.startswith("sys/bus/pci/devices/") and path.count("/") == 4 and entry.link is not None:
                own = os.path.normpath(f"sys/bus/pci/devices/{entry.link}")
                parts = own.split("/")
                folders.update(dict.fromkeys("/".join(parts[:length]) for length in range(3, len(parts) + 1)))
                self._match("/".join(parts[:3]), ["pci_bus", "*", "cpulistaffinity"])
                self._match("/".join(parts[:4]), ["pci_bus", "*", "cpulistaffinity"])
        # A module has the name of its driver where the agent reads its version.
        drivers = {
            (entry.link or "").rpartition("/")[2] for path, entry in self.entries.items() if path.endswith("/driver")
        }
        for driver in sorted(drivers):
            self._leaf(f"sys/module/{driver}/version")
        for folder in folders:
            for name in ("vendor", "power/runtime_status", "numa_node", "local_cpulist", *_LINK_STATE):
                self._leaf(f"{folder}/{name}")

    def _is_suspended(self, folder: str) -> bool:
        status = self.entries.get(f"{folder}/power/runtime_status")
        return status is not None and (status.text or "").strip() == "suspended"

    def _named_nodes(self) -> None:
        for path, entry in list(self.entries.items()):
            if path.endswith("/uevent"):
                for line in (entry.text or "").splitlines():
                    key, _, name = line.partition("=")
                    parts = name.split("/")
                    if key == "DEVNAME" and name and not {"", ".", ".."} & set(parts) and len(parts) < MAX_DEPTH:
                        self._leaf(f"dev/{name}")

    def _neuron_links(self) -> None:
        """Record the PCI address of a Neuron device, which only its driver returns, as a link."""
        for path, entry in list(self.entries.items()):
            name = path.rpartition("/")[2]
            if not entry.folder or path.rpartition("/")[0].rpartition("/")[2] != "neuron_device":
                continue
            if f"{path}/device" not in self.entries:
                try:
                    address = neuron.query_address(Path(self._roots["dev"], name))
                except OSError as error:
                    self._omit(f"dev/{name}", error)
                    continue
                self._add(Entry(f"{path}/device", link=os.path.relpath(f"sys/bus/pci/devices/{address}", path)))

    def _add(self, entry: Entry) -> None:
        if entry.path in self.entries:
            return
        self._bytes += len(entry.content) + len(entry.path) + 64
        if len(self.entries) >= MAX_ENTRIES or self._bytes > MAX_FILE_BYTES // 4:
            raise RetryableError("the tree is larger than a recording may be", where="/" + entry.path)
        self.entries[entry.path] = entry

    def _is_text(self, path: str, name: str) -> bool:
        """Return False, and note the path, if a name is not UTF-8: that of an interface may have any bytes."""
        if not any("\udc80" <= character <= "\udcff" for character in name):
            return True
        omission = Omission(f"/{printable(path, line=True)}", "a name in it is not UTF-8")
        if omission not in self.omitted:  # several patterns lead to one link
            self.omitted.append(omission)
        return False

    def _omit(self, path: str, error: OSError) -> None:
        if error.errno not in _ABSENT and len(self.omitted) < MAX_ENTRIES // 100:
            self.omitted.append(Omission("/" + path, error.strerror or "cannot be read"))

    def _real(self, path: str) -> str:
        top, _, rest = path.partition("/")
        return f"{self._roots[top]}/{rest}"  # a Path takes a third of the time of a recording


def tree_entries(reader: TreeReader) -> Iterator[Entry]:
    """Return the entries in the order of their paths, without those inside of a path that another entry occupies."""
    for path in sorted(reader.entries):
        parts = path.split("/")
        above = (reader.entries.get("/".join(parts[:length])) for length in range(2, len(parts)))
        if len(parts) <= MAX_DEPTH + 1 and not any(one is not None and not one.folder for one in above):
            yield reader.entries[path]


def _read(descriptor: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while size <= MAX_CONTENT_BYTES and (part := os.read(descriptor, MAX_CONTENT_BYTES + 1 - size)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)
