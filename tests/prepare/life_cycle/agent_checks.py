"""Calls to agents, and their expected results: derived from the model, and checked here."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine, initialize

from dra_agent.prepare.ledger import JournalLedger
from prepare.life_cycle import disk
from prepare.life_cycle.agents import AgentFactory, DiedError, RunningAgent
from prepare.life_cycle.allocation import Allocation
from prepare.life_cycle.model import Host, PreparedRecord, StateDirectory, locks_of
from prepare.life_cycle.protocol import AgentSettings, Event, Interruption

GPUS = 3
BLOCKED_CALL_TIMEOUT_S = 0.02
"""Timeout of a call that waits for a hanging one: it waits for all of it."""
CALL_TIMEOUT_S = 45.0
"""Timeout of any other call. No call takes so long, even on a heavily loaded machine."""
PAST_EVERY_DEADLINE_S = 60.0
MEMORY = Path("/dev/shm")
"""Syncs are fast on tmpfs, and these tests cut no power."""
MAX_DELAY_S = 25.0
"""Maximum delay of a response after its deadline on such a machine: less than a call takes that ignores its deadline.
"""
MESSAGES = {
    "reclaim": "is being reclaimed",
    "busy": "in work on it|still preparing|still unpreparing|no longer waits",
    "held": "is held by",
    "missing": "is not on this host now",
    "other devices": "is prepared with other devices",
}

NO_INTERRUPTION = Interruption()


@dataclass(frozen=True)
class AgentSpec:
    """An agent of the host."""

    name: str
    directory: str
    shared: bool = False


@dataclass
class HangingCall:
    """A call that hangs."""

    number: int
    what: str
    uid: str


@dataclass
class AgentSlot:
    """A place for an agent, which may not be running."""

    agent_spec: AgentSpec
    directory: StateDirectory
    agent: RunningAgent | None = None
    hung: list[HangingCall] = field(default_factory=list)
    claim_locks: list[str] = field(default_factory=list)
    device_locks: list[str] = field(default_factory=list)


class AgentChecks(RuleBasedStateMachine):
    """A host with its agents."""

    agent_specs: ClassVar[tuple[AgentSpec, ...]]
    agent_factory: ClassVar[AgentFactory]
    counters: ClassVar[dict[str, int]] = {}
    """The number of events of each kind, to judge the coverage of a run."""

    @initialize()
    def set_up(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dra-agent-", dir=MEMORY if MEMORY.is_dir() else None))
        self.host = Host(self.root, GPUS)
        self.call_count = 0
        directories: dict[str, StateDirectory] = {}
        for agent_spec in self.agent_specs:
            driver = f"{agent_spec.directory}.dra-agent.internal"
            directories.setdefault(agent_spec.directory, StateDirectory(self.root, agent_spec.directory, driver))
        self.directories = list(directories.values())
        self.slots = [AgentSlot(agent_spec, directories[agent_spec.directory]) for agent_spec in self.agent_specs]
        for slot in self.slots:
            self._start(slot)
        self._record_event("examples")

    def teardown(self) -> None:
        if not hasattr(self, "root"):
            return
        try:
            for slot in getattr(self, "slots", ()):
                self._stop_agent(slot)
            for directory in getattr(self, "sides", ()):
                self._check_reopened_ledger(directory)
        finally:
            shutil.rmtree(self.root)

    def _unprepare(self, slot: AgentSlot, uid: str, interruption: Interruption) -> None:
        directory, entry = slot.directory, slot.directory.ledger().get(uid)
        busy = uid in slot.claim_locks or (entry is not None and bool(locks_of(entry) & self._device_locks(directory)))
        event = self._call(slot, "unprepare", BLOCKED_CALL_TIMEOUT_S if busy else CALL_TIMEOUT_S, interruption, uid=uid)
        if event is not None and event.kind == "answered":
            assert not busy, f"{uid} was released while a call for it hangs"
            assert event.released == (entry is not None), f"{uid}: {event}"
            directory.prepared_claims.pop(uid, None)
            directory.unowned.discard(uid)
            assert uid not in directory.ledger() and uid not in disk.specs(self.root / "cdi", directory.driver)
            self._record_event("unprepared" if entry is not None else "unprepared: there was nothing")
        elif event is None or event.fired:
            if entry is not None:
                directory.mark_unconfirmed(uid)
        else:
            self._refused(event, {"busy"} if busy else set())

    def _prepare(self, slot: AgentSlot, uid: str, allocation: Allocation, interruption: Interruption) -> None:
        directory = slot.directory
        reasons = self.host.refusals(directory, uid, allocation, slot.claim_locks, self._device_locks(directory))
        seconds = BLOCKED_CALL_TIMEOUT_S if "busy" in reasons else CALL_TIMEOUT_S
        event = self._call(
            slot, "prepare", seconds, interruption, uid=uid, claim=allocation.claim(uid, directory.driver)
        )
        prepared_claim = directory.prepared_claims.get(uid)
        if event is not None and event.kind == "answered":
            assert not reasons, f"{uid} was prepared although: {reasons}"
            assert tuple(device.device for device in event.devices) == allocation.names
            ids = [name for device in event.devices for name in device.cdi_device_ids]
            assert prepared_claim is None or prepared_claim.allocation != allocation or prepared_claim.ids == ids, (
                "the result changed"
            )
            directory.prepared_claims[uid] = PreparedRecord(allocation, ids)
            directory.unconfirmed.discard(uid)
            directory.unowned.discard(uid)
            self._record_event("prepared" if prepared_claim is None else "prepared again")
            return
        interrupted = event is None or bool(event.fired)
        if prepared_claim is None:
            directory.unconfirmed.add(uid)
        elif (
            interrupted
            and prepared_claim.allocation != allocation
            and prepared_claim.allocation.held == allocation.held
        ):
            directory.mark_unconfirmed(uid)
        if not interrupted:
            assert event is not None
            self._refused(event, reasons)

    def _reboot(self) -> None:
        self.call_count = 0
        for slot in self.slots:
            self._stop_agent(slot)
        self.host.reboot()
        for directory in self.directories:
            directory.is_reclaimed = directory.agent_died = False
            directory.unowned = {
                uid
                for uid, entry_ in directory.ledger().items()
                if self.host.missing(name for name, _ in disk.held_by(entry_))
            }
            for prepared_claim in directory.prepared_claims.values():
                prepared_claim.intact = False
        for slot in self.slots:
            self._start(slot)
        self._record_event("reboots")

    def _refused(self, event: Event, reasons: set[str]) -> None:
        assert reasons, f"refused for no reason: {event.text}"
        assert event.retryable == (reasons != {"other devices"}), event.text
        assert any(word in event.text for reason in reasons for word in MESSAGES[reason].split("|")), (
            f"{reasons}: {event.text}"
        )
        assert event.late_s < MAX_DELAY_S, f"{event.late_s} s late: {event.text}"
        for reason in reasons:
            self._record_event(f"refused: {reason}")

    def _recover(self, slot: AgentSlot, interruption: Interruption) -> None:
        directory, before = slot.directory, self._device_locks(slot.directory)
        event = self._call(slot, "recover", 0.0, interruption)
        if event is None or event.fired:
            return
        entries = directory.ledger()
        lost = {uid for uid, entry_ in entries.items() if self.host.missing(name for name, _ in disk.held_by(entry_))}
        lost |= {
            uid
            for uid in directory.unowned & entries.keys()
            if self.host.held_elsewhere(directory, {device for device, _ in disk.held_by(entries[uid])})
        }
        for uid in lost:
            event.problems = [problem for problem in event.problems if f"({uid})" not in problem]
        assert not event.problems, event.problems
        hung = {uid for uid, entry_ in entries.items() if uid in slot.claim_locks or locks_of(entry_) & before}
        assert set(event.busy) <= hung, f"skipped: {event.busy}"
        for uid, entry_ in entries.items():
            assert entry_["state"] == "completed" or uid in hung, f"{uid} is unfinished and was not rolled back"
        for uid, prepared_claim in directory.prepared_claims.items():
            prepared_claim.intact = prepared_claim.intact or uid not in lost | hung
        directory.unowned &= lost | hung
        self._record_event("repairs")

    def _call(
        self, slot: AgentSlot, what: str, seconds: float, interruption: Interruption, **more: Any
    ) -> Event | None:
        """Return the response; None if the agent was killed. A hanging call gets its response at its deadline."""
        agent = slot.agent
        assert agent is not None
        self.call_count += 1
        try:
            event = agent.send_call(what, seconds=seconds, interruption=interruption, **more)
            if event.kind == "hung":
                hung = HangingCall(event.number, what, event.uid)
                slot.hung.append(hung)
                self._record_event(f"hung: {event.point.partition(' on ')[0]}")
                agent.send_call("set forward", seconds=PAST_EVERY_DEADLINE_S)
                event = agent.wait_for_event(hung.number)
                if what != "recover":
                    assert event.kind == "refused" and event.retryable, f"a hanging call returned a result: {event}"
                    assert f"still {what.removesuffix('e')}ing" in event.text, event.text
                slot.claim_locks, slot.device_locks = event.claim_locks, event.device_locks
                assert hung.uid in slot.claim_locks
        except DiedError:
            self._record_event("killed in a call")
            self._stop_agent(slot)
            return None
        if event.fired:
            self._record_event("stopped")
        self._note_locks(slot, event)
        return event

    def _note_locks(self, slot: AgentSlot, event: Event) -> None:
        """Claims without an operation are unlocked; the ledger of each agent equals the one on disk."""
        if not slot.hung:
            assert not event.claim_locks and not event.device_locks, f"locks remain: {event}"
        assert set(event.claim_locks) <= set(slot.claim_locks) or not slot.claim_locks
        slot.claim_locks, slot.device_locks = event.claim_locks, event.device_locks
        entries = slot.directory.ledger()
        assert {entry.uid: entry.state for entry in event.entries} == {
            uid: entry_["state"] for uid, entry_ in entries.items()
        }

    def _device_locks(self, directory: StateDirectory) -> set[str]:
        return {name for slot in self.slots if slot.directory is directory for name in slot.device_locks}

    def _running_slot(self, number: int) -> AgentSlot:
        """Return the slot of a running agent; start one if none runs."""
        running = [slot for slot in self.slots if slot.agent is not None]
        if not running:
            self._start(self.slots[number % len(self.slots)])
            return self._running_slot(number)
        return running[number % len(running)]

    def _start(self, slot: AgentSlot, *, recover: bool = True) -> None:
        agent_spec = slot.agent_spec
        settings = AgentSettings(
            str(self.root),
            agent_spec.name,
            agent_spec.directory,
            slot.directory.driver,
            f"boot-{self.host.boot}",
            GPUS,
            agent_spec.shared,
        )
        slot.agent = self.agent_factory.start(settings)
        problems = [
            problem
            for problem in slot.agent.problems
            if not any(f"({uid})" in problem for uid in slot.directory.unowned)
        ]
        assert not problems, problems
        slot.directory.agent_died = False
        if recover:
            self._recover(slot, NO_INTERRUPTION)

    def _stop_agent(self, slot: AgentSlot) -> None:
        if slot.agent is not None:
            slot.agent.kill()
            slot.directory.agent_died = True
        slot.agent = None
        slot.hung, slot.claim_locks, slot.device_locks = [], [], []

    def _check_reopened_ledger(self, directory: StateDirectory) -> None:
        entries = directory.ledger()
        with JournalLedger(directory.path, "boot-last") as ledger:
            assert not ledger.report.problems()
            reopened = {entry.uid: (entry.state, len(entry.devices)) for entry in ledger.entries()}
        assert reopened == {uid: (entry_["state"], len(entry_["devices"])) for uid, entry_ in entries.items()}
        assert directory.prepared_claims.keys() <= reopened.keys()

    def _record_event(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1
