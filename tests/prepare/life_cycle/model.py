"""What has to be true: who was promised which devices, and what of it has to be on the disk.

The model of a state directory is a promise for each claim that was answered as prepared and that nobody has asked to
release since. A claim is loose while a call for it was not answered: it may hold its devices, or nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prepare.life_cycle import disk
from prepare.life_cycle.wanted import Wanted, exclude
from prepare.simulated_world import POOL


@dataclass
class Promise:
    """What a kubelet was answered."""

    wanted: Wanted
    ids: list[str]
    whole: bool = True
    """Whether spec and set-up have to be there: not after somebody else removed them, until they are repaired."""


@dataclass
class Side:
    """One state directory, which is one ledger, one driver and one owner of devices."""

    root: Path
    name: str
    driver: str
    promises: dict[str, Promise] = field(default_factory=dict)
    loose: set[str] = field(default_factory=set)
    noticed: bool = False
    """Whether the node is being reclaimed."""
    died: bool = False
    """Whether an agent has died since the last start: what it owned and had not begun yet is still written down."""

    unowned: set[str] = field(default_factory=set)
    """Claims with a device that was not there after a reboot: until they are repaired another agent may take it."""

    @property
    def path(self) -> Path:
        return self.root / self.name

    def ledger(self) -> dict[str, dict[str, Any]]:
        return disk.ledger(self.path)

    def loosen(self, uid: str) -> None:
        """Somebody was told that something of the claim did not end."""
        self.promises.pop(uid, None)
        self.loose.add(uid)


class Host:
    """What all agents have in common."""

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
        """Put every device where it belongs, but for these."""
        for number in range(self.gpus):
            file = self.root / "present" / f"gpu-{number}"
            file.unlink(missing_ok=True) if number in out else file.touch()

    def reboot(self) -> None:
        """Of everything that agents made only their state directories stay."""
        self.boot += 1
        for name in ("hardware", "run", "cdi"):
            for file in (self.root / name).iterdir():
                file.unlink()

    def refusals(
        self, side: Side, uid: str, wanted: Wanted, claim_locks: Collection[str], device_locks: Collection[str]
    ) -> set[str]:
        """Say why a claim cannot be prepared now; it has to be where there is no reason.

        `claim_locks` are those of the agent that is asked, `device_locks` those of all on the state directory: of what
        hangs.
        """
        before, taken = side.ledger(), set(device_locks)
        entry = before.get(uid)
        if side.noticed and entry is None:
            return {"reclaim", "busy"} if uid in claim_locks else {"reclaim"}
        if uid in claim_locks or wanted.locks & taken:
            return {"busy"}
        if entry is not None and entry["state"] == "completed":
            if disk.held_by(entry) != wanted.held:
                return {"other devices"}
            return {"missing"} if self.missing(wanted.names) else self.foreign(side, wanted.names)
        if entry is not None and locks_of(entry) & taken:
            return {"busy"}
        why = {"missing"} if self.missing(wanted.names) else set()
        for other, theirs in before.items():
            if other != uid and exclude(wanted.held, disk.held_by(theirs)):
                # What was begun and is in nobody's work is undone for whoever wants its devices.
                in_work = other in claim_locks or locks_of(theirs) & taken
                if theirs["state"] == "completed" or in_work:
                    why.add("held")
        return why | self.foreign(side, wanted.names)

    def foreign(self, side: Side, names: Iterable[str]) -> set[str]:
        """Say that an agent with another state directory owns one of the devices."""
        owners = disk.owners(self.root / "run")
        records = [owners.get(address_of(name)) for name in names]
        return {"held"} if any(one is not None and Path(one.state_dir) != side.path for one in records) else set()

    def check(self, sides: Collection[Side], in_work: Mapping[str, Collection[str]]) -> None:
        """Compare the disk with the model; `in_work` are claims at which hanging calls are, by state directory."""
        found = {side.name: side.ledger() for side in sides}
        partitions, owners = disk.hardware(self.root / "hardware"), disk.owners(self.root / "run")
        for side in sides:
            entries, working = found[side.name], set(in_work[side.name])
            assert entries.keys() <= side.promises.keys() | side.loose | working, "a claim that nobody wants"
            side.loose &= entries.keys() | working
            self._check_promises(side, entries, partitions)
            self._check_leftovers(side, entries, partitions)
            for address, record in owners.items():
                if Path(record.state_dir) == side.path and not side.died:
                    others = set(record.claims) - entries.keys() - working
                    assert not others, f"{address} is owned for claims that hold nothing: {others}"
        unowned = {(side.name, uid) for side in sides for uid in side.unowned}
        holders = [(name, uid, disk.held_by(one)) for name in found for uid, one in found[name].items()]
        for index, (name, uid, held) in enumerate(holders):
            for other_name, other, theirs in holders[:index]:
                if name != other_name and {(name, uid), (other_name, other)} & unowned:
                    continue
                assert not exclude(held, theirs), f"{uid} of {name} and {other} of {other_name} hold one device"

    def _check_promises(
        self, side: Side, entries: Mapping[str, dict[str, Any]], partitions: Mapping[str, tuple[str, str]]
    ) -> None:
        specs, owners = disk.specs(self.root / "cdi", side.driver), disk.owners(self.root / "run")
        for uid, promise in side.promises.items():
            entry = entries.get(uid)
            assert entry is not None, f"{uid} was lost"
            assert entry["state"] == "completed", f"{uid} was prepared and is only {entry['state']}"
            assert disk.held_by(entry) == promise.wanted.held, f"{uid} has other devices"
            if not promise.whole:
                continue
            assert disk.provides(specs.get(uid), promise.ids, promise.wanted), f"spec of {uid}: {specs.get(uid)}"
            for name in promise.wanted.names:
                if promise.wanted.partition:
                    assert partitions.get(name) == (side.driver, uid), f"partition of {uid} on {name}"
                record = owners.get(address_of(name))
                assert record is not None and uid in record.claims, f"{name} is not owned for {uid}: {record}"

    def _check_leftovers(
        self, side: Side, entries: Mapping[str, dict[str, Any]], partitions: Mapping[str, tuple[str, str]]
    ) -> None:
        for uid in disk.specs(self.root / "cdi", side.driver):
            state = entries[uid]["state"] if uid in entries else "absent"
            assert state == "completed", f"a spec for {uid}, which is {state}"
        for device, (driver, uid) in partitions.items():
            if driver == side.driver:
                held = {name for name, _ in disk.held_by(entries[uid])} if uid in entries else set()
                assert device in held, f"{device} is set up for {uid}, which holds {held}"


def address_of(name: str) -> str:
    """Give the PCI address of a GPU."""
    return f"0000:{int(name.removeprefix('gpu-')):02x}:00.0"


def locks_of(entry: Mapping[str, Any]) -> set[str]:
    """Name the locks of whoever works at an entry."""
    return {f"{POOL}/{device['device']}" for device in entry["devices"]}
