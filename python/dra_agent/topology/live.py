"""Reading a host's topology, once or kept current by uevents. The reading itself is done in Rust."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from dra_agent import _native
from dra_agent.errors import PermanentError
from dra_agent.host import Host
from dra_agent.topology.model import Distance, Topology, TopologyChange, address_order
from dra_agent.topology.uevent import Uevent

_topology = msgspec.json.Decoder(Topology)
_change = msgspec.json.Decoder(TopologyChange)


class LiveTopology:
    """The topology of one host, brought up to date by events; safe to use from several threads.

    Raises PermanentError from every method where the host's sysfs cannot be read at all. A damaged device never
    raises: it is in `snapshot().problems`.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        try:
            self._native = _native.Topology.scan(str(host.sysfs))
        except _native.TopologyError as error:
            raise self._refused(error) from None
        self._guard = threading.Lock()
        self._decoded: Topology | None = None
        """The last snapshot without distances; None where it cannot be brought up to date."""
        self._outdated: set[str] = set()
        """Addresses that are outdated."""
        self._positions: dict[str, int] | None = None
        """Index of each address in it; None where that has to be found."""

    def snapshot(self, *, distances: bool = False) -> Topology:
        """Return the topology as it is known now; devices that no event changed are the objects of the last snapshot.

        `distances`: with the distances of all pairs; their number is quadratic in the devices.
        """
        if distances:
            return _topology.decode(self._native.to_json())
        with self._guard:
            if self._decoded is None:
                self._decoded = _topology.decode(self._native.devices_to_json())
                self._positions = None
            else:
                self._decoded = self._updated(self._decoded)
            self._outdated.clear()
            return self._decoded

    def _updated(self, last: Topology) -> Topology:
        read = _topology.decode(self._native.some_devices_to_json(sorted(self._outdated)))
        if not self._outdated and (read.numa_nodes, read.problems) == (last.numa_nodes, last.problems):
            return last
        devices = list(last.devices)
        if self._positions is None:
            self._positions = {device.pci_address: index for index, device in enumerate(devices)}
        positions = self._positions
        if len(read.devices) == len(self._outdated) and positions.keys() >= self._outdated:
            for device in read.devices:
                devices[positions[device.pci_address]] = device
        else:
            kept = [device for device in last.devices if device.pci_address not in self._outdated]
            devices = sorted([*kept, *read.devices], key=lambda device: address_order(device.pci_address))
            self._positions = None
        return Topology(read.numa_nodes, tuple(devices), problems=read.problems)

    def distance(self, one: str, other: str) -> Distance | None:
        """Return the distance of two devices; None if one is unknown or not relevant, or both are the same."""
        found = self._native.distance(one, other)
        return None if found is None else Distance(found)

    def to_json(self) -> bytes:
        """The snapshot as JSON with the distances of all pairs, not decoded."""
        return self._native.to_json()

    def apply(self, event: Uevent) -> TopologyChange:
        """Rescan the device of the event and its descendants; return the change.

        The event only selects what to rescan: a late, repeated or reordered one does no harm.
        """
        message = event.encode()
        return self._change(lambda: self._native.apply(message))

    def rescan(self) -> TopologyChange:
        """Rescan everything; return changes without an event."""
        return self._change(self._native.rescan)

    def _change(self, read: Callable[[], bytes]) -> TopologyChange:
        with self._guard:
            decoded, self._decoded = self._decoded, None  # until the changes are known
            try:
                change = _change.decode(read())
            except _native.TopologyError as error:
                self._decoded = decoded
                raise self._refused(error) from None
            self._decoded = decoded
            self._outdated.update(change.added, change.removed, change.changed)
            return change

    def _refused(self, error: Exception) -> PermanentError:
        return PermanentError(str(error), hint="check that --sysfs-root is a directory like /sys")


def scan(host: Host, *, distances: bool = False) -> Topology:
    """Read the topology of a host once, with the distances of all pairs if requested.

    Raises PermanentError if sysfs is missing; a damaged device is in `problems` instead.
    """
    return LiveTopology(host).snapshot(distances=distances)
