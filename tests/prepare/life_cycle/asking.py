"""What is asked of agents, and what has to come of it: said by the model, checked here."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine, initialize

from dra_agent.prepare.ledger import JournalLedger
from prepare.life_cycle import disk
from prepare.life_cycle.agents import DiedError, Nursery, RunningAgent
from prepare.life_cycle.model import Host, Promise, Side, locks_of
from prepare.life_cycle.wanted import Wanted
from prepare.life_cycle.words import AgentSettings, Event, Stop

GPUS = 3
SHORT_S = 0.02
"""Until the deadline of a call that has to wait for what hangs: all of it is waited for."""
PATIENCE_S = 45.0
"""Until the deadline of any other call. Nothing waits so long, on a machine that does a hundred other things."""
PAST_EVERY_DEADLINE_S = 60.0
MEMORY = Path("/dev/shm")
"""Syncs cost nothing there, and no power is cut here."""
LATE_S = 25.0
"""How late an answer may be on such a machine: less than a call waits that does not heed its caller's deadline."""
SAID = {
    "reclaim": "is being reclaimed",
    "busy": "in work on it|still preparing|still unpreparing|no longer waits",
    "held": "is held by",
    "missing": "is not on this host now",
    "other devices": "is prepared with other devices",
}

NO_STOP = Stop()


@dataclass(frozen=True)
class Member:
    """An agent of the host."""

    name: str
    side: str
    shared: bool = False


@dataclass
class Hung:
    """A call that hangs."""

    number: int
    what: str
    uid: str


@dataclass
class Slot:
    """Where an agent runs, or does not."""

    member: Member
    side: Side
    agent: RunningAgent | None = None
    hung: list[Hung] = field(default_factory=list)
    claim_locks: list[str] = field(default_factory=list)
    device_locks: list[str] = field(default_factory=list)


class Asking(RuleBasedStateMachine):
    """A host with its agents."""

    members: ClassVar[tuple[Member, ...]]
    nursery: ClassVar[Nursery]
    counted: ClassVar[dict[str, int]] = {}
    """How often each kind of thing happened, for who wants to know what a run was worth."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dra-agent-", dir=MEMORY if MEMORY.is_dir() else None))
        self.host = Host(self.root, GPUS)
        self.asked = 0
        sides: dict[str, Side] = {}
        for member in self.members:
            driver = f"{member.side}.dra-agent.internal"
            sides.setdefault(member.side, Side(self.root, member.side, driver))
        self.sides = list(sides.values())
        self.slots = [Slot(member, sides[member.side]) for member in self.members]
        for slot in self.slots:
            self._start(slot)
        self._count("examples")

    def teardown(self) -> None:
        if not hasattr(self, "root"):
            return
        try:
            for slot in getattr(self, "slots", ()):
                self._ended(slot)
            for side in getattr(self, "sides", ()):
                self._reopen(side)
        finally:
            shutil.rmtree(self.root)

    def _unprepare(self, chosen: Slot, uid: str, stop: Stop) -> None:
        side, entry = chosen.side, chosen.side.ledger().get(uid)
        busy = uid in chosen.claim_locks or (entry is not None and bool(locks_of(entry) & self._device_locks(side)))
        event = self._ask(chosen, "unprepare", SHORT_S if busy else PATIENCE_S, stop, uid=uid)
        if event is not None and event.kind == "answered":
            assert not busy, f"{uid} was released while a call for it hangs"
            assert event.released == (entry is not None), f"{uid}: {event}"
            side.promises.pop(uid, None)
            side.unowned.discard(uid)
            assert uid not in side.ledger() and uid not in disk.specs(self.root / "cdi", side.driver)
            self._count("unprepared" if entry is not None else "unprepared: there was nothing")
        elif event is None or event.fired:
            if entry is not None:
                side.loosen(uid)
        else:
            self._refused(event, {"busy"} if busy else set())

    def _prepare(self, chosen: Slot, uid: str, wanted: Wanted, stop: Stop) -> None:
        side = chosen.side
        why = self.host.refusals(side, uid, wanted, chosen.claim_locks, self._device_locks(side))
        seconds = SHORT_S if "busy" in why else PATIENCE_S
        event = self._ask(chosen, "prepare", seconds, stop, uid=uid, claim=wanted.claim(uid, side.driver))
        promise = side.promises.get(uid)
        if event is not None and event.kind == "answered":
            assert not why, f"{uid} was prepared although: {why}"
            assert tuple(device.device for device in event.devices) == wanted.names
            ids = [name for device in event.devices for name in device.cdi_device_ids]
            assert promise is None or promise.wanted != wanted or promise.ids == ids, "another answer than before"
            side.promises[uid] = Promise(wanted, ids)
            side.loose.discard(uid)
            side.unowned.discard(uid)
            self._count("prepared" if promise is None else "prepared again")
            return
        stopped = event is None or bool(event.fired)
        if promise is None:
            side.loose.add(uid)
        elif stopped and promise.wanted != wanted and promise.wanted.held == wanted.held:
            side.loosen(uid)
        if not stopped:
            assert event is not None
            self._refused(event, why)

    def _reboot(self) -> None:
        self.asked = 0
        for slot in self.slots:
            self._ended(slot)
        self.host.reboot()
        for side in self.sides:
            side.noticed = side.died = False
            side.unowned = {
                uid for uid, one in side.ledger().items() if self.host.missing(name for name, _ in disk.held_by(one))
            }
            for promise in side.promises.values():
                promise.whole = False
        for slot in self.slots:
            self._start(slot)
        self._count("reboots")

    def _refused(self, event: Event, why: set[str]) -> None:
        assert why, f"refused for no reason: {event.text}"
        assert event.retryable == (why != {"other devices"}), event.text
        assert any(word in event.text for reason in why for word in SAID[reason].split("|")), f"{why}: {event.text}"
        assert event.late_s < LATE_S, f"{event.late_s} s late: {event.text}"
        for reason in why:
            self._count(f"refused: {reason}")

    def _recover(self, chosen: Slot, stop: Stop) -> None:
        side, before = chosen.side, self._device_locks(chosen.side)
        event = self._ask(chosen, "recover", 0.0, stop)
        if event is None or event.fired:
            return
        entries = side.ledger()
        lost = {uid for uid, one in entries.items() if self.host.missing(name for name, _ in disk.held_by(one))}
        lost |= {
            uid
            for uid in side.unowned & entries.keys()
            if self.host.foreign(side, {d for d, _ in disk.held_by(entries[uid])})
        }
        for uid in lost:
            event.problems = [problem for problem in event.problems if f"({uid})" not in problem]
        assert not event.problems, event.problems
        hung = {uid for uid, one in entries.items() if uid in chosen.claim_locks or locks_of(one) & before}
        assert set(event.busy) <= hung, f"not looked at: {event.busy}"
        for uid, one in entries.items():
            assert one["state"] == "completed" or uid in hung, f"{uid} was begun, and is not undone"
        for uid, promise in side.promises.items():
            promise.whole = promise.whole or uid not in lost | hung
        side.unowned &= lost | hung
        self._count("repairs")

    def _ask(self, chosen: Slot, what: str, seconds: float, stop: Stop, **more: Any) -> Event | None:
        """Give the answer; None where the agent was killed. The caller of what hangs is answered at its deadline."""
        agent = chosen.agent
        assert agent is not None
        self.asked += 1
        try:
            event = agent.ask(what, seconds=seconds, stop=stop, **more)
            if event.kind == "hung":
                hung = Hung(event.number, what, event.uid)
                chosen.hung.append(hung)
                self._count(f"hung: {event.point.partition(' on ')[0]}")
                agent.ask("set forward", seconds=PAST_EVERY_DEADLINE_S)
                event = agent.answer(hung.number)
                if what != "recover":
                    assert event.kind == "refused" and event.retryable, f"a call that hangs was answered: {event}"
                    assert f"still {what.removesuffix('e')}ing" in event.text, event.text
                chosen.claim_locks, chosen.device_locks = event.claim_locks, event.device_locks
                assert hung.uid in chosen.claim_locks
        except DiedError:
            self._count("killed in a call")
            self._ended(chosen)
            return None
        if event.fired:
            self._count("stopped")
        self._note_locks(chosen, event)
        return event

    def _note_locks(self, slot: Slot, event: Event) -> None:
        """What is in nobody's work is locked by nobody; each agent's ledger is the one on the disk."""
        if not slot.hung:
            assert not event.claim_locks and not event.device_locks, f"locks are left: {event}"
        assert set(event.claim_locks) <= set(slot.claim_locks) or not slot.claim_locks
        slot.claim_locks, slot.device_locks = event.claim_locks, event.device_locks
        entries = slot.side.ledger()
        assert {entry.uid: entry.state for entry in event.entries} == {u: one["state"] for u, one in entries.items()}

    def _device_locks(self, side: Side) -> set[str]:
        return {name for slot in self.slots if slot.side is side for name in slot.device_locks}

    def _living(self, number: int) -> Slot:
        """Give an agent that lives; one is started where none does."""
        living = [slot for slot in self.slots if slot.agent is not None]
        if not living:
            self._start(self.slots[number % len(self.slots)])
            return self._living(number)
        return living[number % len(living)]

    def _start(self, slot: Slot, *, recover: bool = True) -> None:
        member = slot.member
        settings = AgentSettings(
            str(self.root), member.name, member.side, slot.side.driver, f"boot-{self.host.boot}", GPUS, member.shared
        )
        slot.agent = self.nursery.start(settings)
        problems = [one for one in slot.agent.problems if not any(f"({uid})" in one for uid in slot.side.unowned)]
        assert not problems, problems
        slot.side.died = False
        if recover:
            self._recover(slot, NO_STOP)

    def _ended(self, slot: Slot) -> None:
        if slot.agent is not None:
            slot.agent.kill()
            slot.side.died = True
        slot.agent = None
        slot.hung, slot.claim_locks, slot.device_locks = [], [], []

    def _reopen(self, side: Side) -> None:
        entries = side.ledger()
        with JournalLedger(side.path, "boot-last") as ledger:
            assert not ledger.report.problems()
            reopened = {entry.uid: (entry.state, len(entry.devices)) for entry in ledger.entries()}
        assert reopened == {uid: (one["state"], len(one["devices"])) for uid, one in entries.items()}
        assert side.promises.keys() <= reopened.keys()

    def _count(self, what: str) -> None:
        self.counted[what] = self.counted.get(what, 0) + 1
