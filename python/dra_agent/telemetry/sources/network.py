"""Network adapters: statistics of the interface and of the RDMA ports, from sysfs.

An interface that a claim has moved into a container is in the container's network namespace, where the host's sysfs
does not show it: its values are unknown.
"""

from __future__ import annotations

import errno
import os

import msgspec

from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.telemetry.hwmon import UNKNOWN_ERRORS
from dra_agent.telemetry.model import DeviceSample

_RDMA_WORD_BYTES = 4
"""port_rcv_data and port_xmit_data are octets divided by 4 (Linux, Documentation/ABI/stable/sysfs-class-infiniband)."""
_INTERFACE = {
    "network_receive_bytes": "rx_bytes",
    "network_transmit_bytes": "tx_bytes",
    "network_receive_errors": "rx_errors",
    "network_transmit_errors": "tx_errors",
    "network_receive_drops": "rx_dropped",
    "network_transmit_drops": "tx_dropped",
}
"""Files of /sys/class/net/NAME/statistics (Linux, Documentation/ABI/testing/sysfs-class-net-statistics)."""
_PORT_WORDS = {"rdma_receive_bytes": "port_rcv_data", "rdma_transmit_bytes": "port_xmit_data"}
_PORT_EVENTS = {
    "rdma_receive_errors": "port_rcv_errors",
    "rdma_transmit_discards": "port_xmit_discards",
    "rdma_link_downed": "link_downed",
}
"""Fields of 16, 16 and 8 bits (drivers/infiniband/core/sysfs.c, PORT_PMA_ATTR) that do not wrap: they stay at their
highest value (InfiniBand Architecture Specification, PortCounters)."""
_UNKNOWN_ERRORS = UNKNOWN_ERRORS | {errno.ENOSYS}
"""ENOSYS: a driver without management datagrams (drivers/infiniband/core/sysfs.c, get_perf_mad)."""
_NO_LINK_ERRORS = {errno.ENOENT, errno.ENOTDIR, errno.EINVAL}
"""Of readlink: there is no such name, or it is not a link."""
_MAX_NUMBER_BYTES = 64


def make(host: Host) -> NetworkSource:
    """Create the source."""
    return NetworkSource(host)


class NetworkSource:
    """Reads adapters by the names of their interface and RDMA device."""

    name = "sysfs-network"

    def __init__(self, host: Host) -> None:
        # Text: an adapter has 11 files, and pathlib would take most of the CPU time of a sample.
        self._sysfs = str(host.sysfs)

    def can_read(self, device: Device) -> bool:
        """Return whether the device has an interface or an RDMA device."""
        return "ifname" in device.identity or "rdma" in device.identity

    def read(self, device: Device) -> DeviceSample | None:
        """Read one adapter; None if neither interface nor RDMA device is visible to the host."""
        values: dict[str, float] = {}
        if (folder := self._folder(device, "net", device.identity.get("ifname"))) is not None:
            values |= _read(f"{folder}/statistics", _INTERFACE)
        if (folder := self._folder(device, "infiniband", device.identity.get("rdma"))) is not None:
            for port in _ports(folder):
                for field, words in _read(f"{port}/counters", _PORT_WORDS).items():
                    values[field] = values.get(field, 0) + words * _RDMA_WORD_BYTES
                for field, events in _read(f"{port}/counters", _PORT_EVENTS).items():
                    values[field] = values.get(field, 0) + events
        return msgspec.convert(values, DeviceSample) if values else None

    def _folder(self, device: Device, kind: str, name: str | None) -> str | None:
        """Return the folder of the device's own interface or RDMA device, below the device.

        Another one may have the name after the device's own was moved or renamed, also while its counters are read:
        this path never leads to it.
        """
        if name is None:
            return None
        folder = f"{self._sysfs}/class/{kind}"
        try:
            # The class has a link to the folder, whose path has no further links.
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 - a text
        except OSError as error:
            if error.errno not in _NO_LINK_ERRORS:
                raise
            return None
        found = os.path.normpath(os.path.join(folder, target))  # noqa: PTH118 - a text
        return found if device.pci_address in found.split("/") else None

    def close(self) -> None:
        """Nothing is open."""


def _ports(folder: str) -> list[str]:
    try:
        return [f"{folder}/ports/{name}" for name in sorted(os.listdir(f"{folder}/ports"))]  # noqa: PTH208 - names only
    except (FileNotFoundError, NotADirectoryError):
        return []  # it was moved or removed meanwhile


def _read(folder: str, names: dict[str, str]) -> dict[str, float]:
    """Return the counters that exist; OSError if one cannot be read, ValueError if it is not a number."""
    values: dict[str, float] = {}
    for field, name in names.items():
        try:
            file = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                values[field] = int(os.read(file, _MAX_NUMBER_BYTES))
            finally:
                os.close(file)
        except OSError as error:
            if error.errno not in _UNKNOWN_ERRORS:
                raise
    return values
