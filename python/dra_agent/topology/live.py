"""Reading a host's topology, once or kept current by uevents. The reading itself is done in Rust."""

from __future__ import annotations

import msgspec

from dra_agent import _native
from dra_agent.errors import PermanentError
from dra_agent.host import Host
from dra_agent.topology.model import Change, Distance, Topology
from dra_agent.topology.uevent import Uevent

_topology = msgspec.json.Decoder(Topology)
_change = msgspec.json.Decoder(Change)


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

    def snapshot(self, *, distances: bool = False) -> Topology:
        """The topology as it is known now.

        `distances`: with those of all pairs, whose number grows with the square of the devices.
        """
        return _topology.decode(self._native.to_json() if distances else self._native.devices_to_json())

    def distance(self, one: str, other: str) -> Distance | None:
        """How far apart two wanted devices are; None where one is unknown, not wanted, or both are the same."""
        found = self._native.distance(one, other)
        return None if found is None else Distance(found)

    def to_json(self) -> bytes:
        """The snapshot as JSON with the distances of all pairs, not decoded."""
        return self._native.to_json()

    def apply(self, event: Uevent) -> Change:
        """Look again at the device that the event names, and at what hangs below it; says what that changed.

        The event only tells where to look: one that comes late, twice or out of order does no harm.
        """
        try:
            return _change.decode(self._native.apply(event.encode()))
        except _native.TopologyError as error:
            raise self._refused(error) from None

    def rescan(self) -> Change:
        """Read everything again; says what had changed without an event."""
        try:
            return _change.decode(self._native.rescan())
        except _native.TopologyError as error:
            raise self._refused(error) from None

    def _refused(self, error: Exception) -> PermanentError:
        return PermanentError(str(error), todo="check that --sysfs-root names a directory that stands for /sys")


def scan(host: Host, *, distances: bool = False) -> Topology:
    """Read the topology of a host once, with the distances of all pairs where they are asked for.

    Raises PermanentError where there is no sysfs; a damaged device is in `problems` instead.
    """
    return LiveTopology(host).snapshot(distances=distances)
