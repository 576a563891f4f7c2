"""The model of the disk: which devices each prepared claim has, and which files must exist for it.

The model of a state directory has an entry for each claim that was returned as prepared and not unprepared since. A
claim is unconfirmed while a call for it failed: it may hold its devices or nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prepare.life_cycle import disk
from prepare.life_cycle.allocation import Allocation, are_exclusive
from prepare.simulated_node import POOL


@dataclass
class PreparedRecord:
    """A claim as it was returned to the kubelet."""

    allocation: Allocation
    ids: list[str]
    intact: bool = True
    """Whether spec and device setup must exist: not between external damage and a repair."""


@dataclass
class StateDirectory:
    """One state directory: a ledger, a driver, and an owner of devices."""

    root: Path
    name: str
    driver: str
    prepared_claims: dict[str, PreparedRecord] = field(default_factory=dict)
    unconfirmed: set[str] = field(default_factory=set)
    is_reclaimed: bool = False
    """Whether the node is being reclaimed."""
    agent_died: bool = False
    """Whether an agent was killed since the last start: owner records without a ledger entry may remain."""

    unowned: set[str] = field(default_factory=set)
    """Claims with a device that was missing after a reboot: until their repair another agent may own it."""

    @property
    def path(self) -> Path:
        return self.root / self.name

    def ledger(self) -> dict[str, dict[str, Any]]:
        return disk.ledger(self.path)

    def mark_unconfirmed(self, uid: str) -> None:
        """Record that a call for the claim failed."""
        self.prepared_claims.pop(uid, None)
        self.unconfirmed.add(uid)


class Host:
    """The parts that all agents share."""

    def __init__(self, root: Path, gpus: int) -> None:
        self.root = root
        self.boot = 1
        for name in ("present", "hardware", "run", "cdi"):
            (root / name).mkdir()
        self.gpus = gpus
        self.plug(())

    def missing(self, names: Iterable[str]) -> bool:
        return not all((self.root / "present" / name).exists() for name in names)

    def plug(self, out: Collection[int]) -> None:
        """Plug in every device except these."""
        for number in range(self.gpus):
            file = self.root / "present" / f"gpu-{number}"
            file.unlink(missing_ok=True) if number in out else file.touch()

    def reboot(self) -> None:
        """Remove everything except the state directories."""
        self.boot += 1
        for name in ("hardware", "run", "cdi"):
            for file in (self.root / name).iterdir():
                file.unlink()

    def refusals(
        self,
        directory: StateDirectory,
        uid: str,
        allocation: Allocation,
        claim_locks: Collection[str],
        device_locks: Collection[str],
    ) -> set[str]:
        """Return why a claim cannot be prepared now; without a reason it must be prepared.

        `claim_locks` are those of the called agent, `device_locks` those of all agents on the state directory; both
        belong to hanging calls.
        """
        entries, locked = directory.ledger(), set(device_locks)
        entry = entries.get(uid)
        if directory.is_reclaimed and entry is None:
            return {"reclaim", "busy"} if uid in claim_locks else {"reclaim"}
        if uid in claim_locks or allocation.locks & locked:
            return {"busy"}
        if entry is not None and entry["state"] == "completed":
            if disk.held_by(entry) != allocation.held:
                return {"other devices"}
            return {"missing"} if self.missing(allocation.names) else self.held_elsewhere(directory, allocation.names)
        if entry is not None and locks_of(entry) & locked:
            return {"busy"}
        reasons = {"missing"} if self.missing(allocation.names) else set()
        for other_uid, other_entry in entries.items():
            if other_uid != uid and are_exclusive(allocation.held, disk.held_by(other_entry)):
                # An unfinished claim without an operation is rolled back when another claim needs its devices.
                in_progress = other_uid in claim_locks or locks_of(other_entry) & locked
                if other_entry["state"] == "completed" or in_progress:
                    reasons.add("held")
        return reasons | self.held_elsewhere(directory, allocation.names)

    def held_elsewhere(self, directory: StateDirectory, names: Iterable[str]) -> set[str]:
        """Return {"held"} if an agent with another state directory owns one of the devices."""
        owners = disk.owners(self.root / "run")
        records = [owners.get(address_of(name)) for name in names]
        return (
            {"held"}
            if any(record is not None and Path(record.state_dir) != directory.path for record in records)
            else set()
        )

    def check(self, directories: Collection[StateDirectory], in_progress: Mapping[str, Collection[str]]) -> None:
        """Compare the disk with the model; `in_progress` has the claims of hanging calls by state directory."""
        ledgers = {directory.name: directory.ledger() for directory in directories}
        partitions, owners = disk.hardware(self.root / "hardware"), disk.owners(self.root / "run")
        for directory in directories:
            entries, active = ledgers[directory.name], set(in_progress[directory.name])
            assert entries.keys() <= directory.prepared_claims.keys() | directory.unconfirmed | active, (
                "a claim that was never requested"
            )
            directory.unconfirmed &= entries.keys() | active
            self._check_promises(directory, entries, partitions)
            self._check_leftovers(directory, entries, partitions)
            for address, record in owners.items():
                if Path(record.state_dir) == directory.path and not directory.agent_died:
                    unknown = set(record.claims) - entries.keys() - active
                    assert not unknown, f"{address} is owned for claims that hold nothing: {unknown}"
        unowned = {(directory.name, uid) for directory in directories for uid in directory.unowned}
        holders = [(name, uid, disk.held_by(entry)) for name in ledgers for uid, entry in ledgers[name].items()]
        for index, (name, uid, held_devices) in enumerate(holders):
            for other_name, other_uid, other_held in holders[:index]:
                if name != other_name and {(name, uid), (other_name, other_uid)} & unowned:
                    continue
                assert not are_exclusive(held_devices, other_held), (
                    f"{uid} of {name} and {other_uid} of {other_name} hold one device"
                )

    def _check_promises(
        self,
        directory: StateDirectory,
        entries: Mapping[str, dict[str, Any]],
        partitions: Mapping[str, tuple[str, str]],
    ) -> None:
        specs, owners = disk.specs(self.root / "cdi", directory.driver), disk.owners(self.root / "run")
        for uid, prepared_claim in directory.prepared_claims.items():
            entry = entries.get(uid)
            assert entry is not None, f"{uid} was lost"
            assert entry["state"] == "completed", f"{uid} was prepared and is only {entry['state']}"
            assert disk.held_by(entry) == prepared_claim.allocation.held, f"{uid} has other devices"
            if not prepared_claim.intact:
                continue
            assert disk.provides(specs.get(uid), prepared_claim.ids, prepared_claim.allocation), (
                f"spec of {uid}: {specs.get(uid)}"
            )
            for name in prepared_claim.allocation.names:
                if prepared_claim.allocation.partition:
                    assert partitions.get(name) == (directory.driver, uid), f"partition of {uid} on {name}"
                record = owners.get(address_of(name))
                assert record is not None and uid in record.claims, f"{name} is not owned for {uid}: {record}"

    def _check_leftovers(
        self,
        directory: StateDirectory,
        entries: Mapping[str, dict[str, Any]],
        partitions: Mapping[str, tuple[str, str]],
    ) -> None:
        for uid in disk.specs(self.root / "cdi", directory.driver):
            state = entries[uid]["state"] if uid in entries else "absent"
            assert state == "completed", f"a spec for {uid}, which is {state}"
        for device, (driver, uid) in partitions.items():
            if driver == directory.driver:
                held = {name for name, _ in disk.held_by(entries[uid])} if uid in entries else set()
                assert device in held, f"{device} is set up for {uid}, which holds {held}"


def address_of(name: str) -> str:
    """Return the PCI address of a GPU."""
    return f"0000:{int(name.removeprefix('gpu-')):02x}:00.0"


def locks_of(entry: Mapping[str, Any]) -> set[str]:
    """Return the names of the locks that an operation on the entry holds."""
    return {f"{POOL}/{device['device']}" for device in entry["devices"]}
