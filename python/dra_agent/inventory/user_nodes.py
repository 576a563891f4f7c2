"""The device nodes of vendors' own drivers that a container gets of a function, besides those that the scan reads.

Claims and descriptions use the same answer: a function without such a node is not published.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dra_agent.claimable.vendor_nodes import DriverNodes, vendor_nodes
from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.builder import DeviceBuilder, pci_files
from dra_agent.inventory.products import fpga_companions
from dra_agent.inventory.sysfs import SysfsDir
from dra_agent.topology.model import DeviceKind, PciFunction

_DEPTH = 3
"""Levels of folders below a function: fpga_region/region0/dfl-port.0."""
_SKIPPED = frozenset(
    {
        *("power", "msi_irqs"),
        # Disks; DRM, RDMA and accel, which the scan reads.
        *("block", "nvme", "nvme-generic", "scsi_generic", "bsg", "mtd", "nd"),
        *("drm", "drm_dp_aux_dev", "graphics", "accel", "infiniband", "infiniband_verbs", "infiniband_mad"),
        *("infiniband_cm", "net", "vfio-dev", "uio"),
        # Parts of a card and of the host that are not for computing.
        *("sound", "video4linux", "dvb", "cec", "media", "input", "hidraw", "lirc", "usb", "usbmisc"),
        *("i2c-dev", "spidev", "gpio", "hwmon", "tty", "rtc", "watchdog", "ptp", "pps", "iio", "tpm", "tpmrm"),
        *("mei", "remoteproc", "rpmsg", "ipmi", "wwan", "rfkill"),
    }
)
"""Folders and subsystems of the kernel whose nodes do not compute, or that other parts of the agent know."""
_MANAGEMENT = ("fme", "mgmt")
"""In names of nodes that reprogram a whole FPGA card (dfl-fme): a claim gets only its ports."""
_LOCATED_CLASSES = ("hailo_chardev", "hailo1x")
"""Classes whose devices have the PCI address as `board_location` (hailort-drivers, linux/pcie/src/sysfs.c)."""
_HAILO, _HPE_CRAY = "0x1e60", "0x17db"
_OMNI_PATH_DRIVER = "hfi1"


def user_nodes(
    host: Host, function: PciFunction, functions: Sequence[PciFunction], problems: list[Diagnostic]
) -> tuple[str, ...]:
    """Return the names below /dev; `functions`: those of the same kind, of which some are parts of an FPGA card."""
    if function.is_vfio:
        return ()
    if function.kind is DeviceKind.NIC:
        return _of_nic(host, function, problems)
    parts = [function, *(fpga_companions(function, functions) if function.kind is DeviceKind.FPGA else ())]
    names = [name for part in parts for name in _below(pci_files(host, part, problems))]
    if function.kind is DeviceKind.FPGA:
        names = [name for name in names if not any(word in name for word in _MANAGEMENT)]
    if function.vendor_id == _HAILO:
        names += _located(host, function.pci_address, problems)
    return tuple(dict.fromkeys(name for name in names if name not in function.accel))


def driver_nodes(
    host: Host, function: PciFunction, functions: Sequence[PciFunction], problems: list[Diagnostic]
) -> DriverNodes:
    """Return what decides whether a claim may have the function; `functions` as above."""
    own = user_nodes(host, function, functions, problems)
    vendor = vendor_nodes(function)
    missing = tuple(name for name in vendor.shared if not host.dev_path(f"/dev/{name}").exists())
    has_others = bool(function.accel) or (function.drm is not None and function.drm.render is not None)
    if vendor.own is None or own or (has_others and not vendor.needed):
        return DriverNodes(own, missing)
    names = SysfsDir(host.dev, problems).names()
    unrelated = next((name for name in names if vendor.own.fullmatch(name)), None)
    if unrelated is None and vendor.needed:
        missing += (vendor.needed,)
    return DriverNodes(own, missing, unrelated)


def add_user_nodes(builder: DeviceBuilder, functions: Sequence[PciFunction] = ()) -> None:
    """Add the nodes of a function, and those that all devices of its vendor share."""
    for name in user_nodes(builder.host, builder.function, functions, builder.problems):
        builder.node(f"/dev/{name}", "vendor")
    nodes = vendor_nodes(builder.function)
    for name in (*nodes.shared, *nodes.optional):
        builder.node_if_there(f"/dev/{name}", "control")


def _of_nic(host: Host, function: PciFunction, problems: list[Diagnostic]) -> tuple[str, ...]:
    """Return the nodes by which libraries use a NIC without its interface."""
    if function.vendor_id == _HPE_CRAY:
        return tuple(_below(pci_files(host, function, problems)))
    if function.driver == _OMNI_PATH_DRIVER:
        # Its nodes have no parent in /sys: their names are those that hfi1 gives its RDMA devices.
        return tuple(name for name in function.infiniband if host.dev_path(f"/dev/{name}").exists())
    return ()


def _below(files: SysfsDir, depth: int = _DEPTH) -> Iterator[str]:
    """Return the character devices below a function, by their `uevent` files.

    Links (to the driver, to other functions) are not followed.
    """
    for name in files.names():
        path = files.folder / name
        # Most devices are in a folder with the name of their class.
        if name in _SKIPPED or path.is_symlink() or not path.is_dir():
            continue
        child = files.subdir(name)
        if (path / "dev").exists():
            if child.link("subsystem") in _SKIPPED:
                continue
            if node := child.key_values("uevent", "=").get("DEVNAME"):
                yield node
        if depth > 1:
            yield from _below(child, depth - 1)


def _located(host: Host, address: str, problems: list[Diagnostic]) -> Iterator[str]:
    for class_ in _LOCATED_CLASSES:
        folder = SysfsDir(host.sysfs / "class" / class_, problems)
        for name in folder.names():
            device = folder.subdir(name)
            if device.text("board_location") == address and (node := device.key_values("uevent", "=").get("DEVNAME")):
                yield node
