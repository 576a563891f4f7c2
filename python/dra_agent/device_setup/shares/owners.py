"""The claim that a process uses a device for: by its cgroup, and by the pods for which claims are reserved.

A container can choose neither, unlike its environment. Where they are ambiguous, the owner is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from dra_agent.host import Host
from dra_agent.inventory.shares import MEMORY
from dra_agent.prepare.ledger import LedgerEntry
from dra_agent.prepare.record import read
from dra_agent.processes.containers import Place, place_of
from dra_agent.processes.stat import process_ids
from dra_agent.processes.visibility import hidden_processes_reason


class HeldShare(msgspec.Struct, frozen=True):
    """A device, or a share of one, of a claim."""

    uid: str
    claim: str
    """"namespace/name"."""
    key: str
    consumed: str | None
    """Memory of a shared device that the scheduler allocated to it (a Quantity text)."""
    pool: str = ""
    pods: frozenset[str] | None = None
    """UIDs of the pods for which the claim is reserved; None if unknown."""
    pods_unknown: str = ""
    """Why they are unknown."""


class UnknownOwnerError(Exception):
    """A process uses the device, and its claim is ambiguous."""


class ProcessOwners:
    """The owners of the processes of one host, at one moment."""

    def __init__(self, host: Host, everything: Sequence[HeldShare], *, standalone: bool, is_sample: bool) -> None:
        """`everything` includes claims with admin access. `standalone`: claims have no pods.

        `is_sample`: for telemetry. The pods of claims may be incomplete, so the owner of a process is unknown while its
        pod is in no claim.
        """
        self._host = host
        self._standalone = standalone
        self._is_sample = is_sample
        self._by_device: dict[tuple[str, str], list[HeldShare]] = {}
        for held in everything:
            self._by_device.setdefault(_device(held), []).append(held)
        self._places: dict[int, Place] | None = None
        self._place_of: dict[int, Place | None] = {}
        self._users: dict[tuple[tuple[str, str], str | None], tuple[Sequence[HeldShare], frozenset[HeldShare]]] = {}
        """By device and pod: the shares that a process may use, so that not every process compares all of them."""

    def check_visible(self) -> None:
        """Raise UnknownOwnerError if the agent does not see all processes of the host."""
        if hidden := hidden_processes_reason(self._host):
            raise UnknownOwnerError(f"the owners of processes that use it are not known: {hidden}")

    def places(self) -> Mapping[int, Place]:
        """Return the location of every process, as they were at the first call."""
        if self._places is None:
            pids: list[int] = []
            with suppress(OSError):
                pids = process_ids(self._host.proc)
            self._places = {pid: place for pid in pids if (place := place_of(self._host.proc, pid)) is not None}
        return self._places

    def place_of(self, pid: int) -> Place | None:
        """Return the location of one process, as it was at the first call; None if it did not exist.

        Unlike `places`, it knows processes that have started since the first call for another one.
        """
        if pid not in self._place_of:
            self._place_of[pid] = place_of(self._host.proc, pid)
        return self._place_of[pid]

    def problem(self, held: HeldShare, place: Place) -> str | None:
        """Return "" if a user of the device belongs to this claim, None if not, otherwise why that is ambiguous."""
        if place.kind == "host":
            return None
        candidates, distinct = self._candidates(_device(held), place)
        if place.kind == "pod" and self._is_sample and not candidates:
            return "its pod may have joined a claim after that was prepared"
        if held not in distinct:
            return None
        if place.kind == "unknown":
            return place.reason
        if len(candidates) > 1:
            known = place.kind == "pod" and all(one.pods is not None for one in candidates)
            whose = "its pod" if known else "its container"
            return f"{whose} may use the device through several claims or requests"
        if self._standalone:
            return ""  # only this claim has the device, so a container that uses it has it from there
        if held.pods is None:
            return held.pods_unknown or "the pods of the claim are not known"
        return "" if place.kind == "pod" else "its cgroup names no pod"

    def _candidates(self, device: tuple[str, str], place: Place) -> tuple[Sequence[HeldShare], frozenset[HeldShare]]:
        """Return the shares of a device that a process at this place may use: all, and as a set."""
        key = device, place.pod_uid if place.kind == "pod" else None
        known = self._users.get(key)
        if known is None:
            found = [
                one
                for one in self._by_device.get(device, ())
                if place.kind != "pod" or one.pods is None or place.pod_uid in one.pods
            ]
            known = self._users[key] = found, frozenset(found)
        return known


def held_shares(
    entries: Iterable[LedgerEntry], pods: Mapping[str, frozenset[str] | str]
) -> list[tuple[HeldShare, bool]]:
    """Return the devices and shares of claims, and True for those that have an amount.

    `pods`: the UIDs of a claim's pods, or why they are unknown. A claim with admin access, and a claim whose record
    cannot be read, may use a device, but have no amount of it.
    """
    found = []
    for entry in entries:
        record = read(entry)
        users = pods.get(entry.uid, "")
        known, why = (None, users) if isinstance(users, str) else (users, "")
        name = f"{entry.namespace}/{entry.name}"
        if record is None:
            keys = [(item.key, item.pool) for item in entry.devices if item.request]
            found += [(HeldShare(entry.uid, name, key, None, pool, known, why), False) for key, pool in keys]
            continue
        for item in record.devices:
            consumed = item.consumed_capacity.get(MEMORY)
            found.append((HeldShare(entry.uid, name, item.key, consumed, item.pool, known, why), not item.admin_access))
    return found


def _device(held: HeldShare) -> tuple[str, str]:
    return (held.pool, held.key.partition("/")[0])
