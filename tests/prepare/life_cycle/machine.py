"""The life cycle of claims as steps in any order; each subclass defines the agents."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from prepare.life_cycle.agent_checks import GPUS, NO_INTERRUPTION, AgentChecks
from prepare.life_cycle.allocation import Allocation
from prepare.life_cycle.protocol import Interruption

UIDS = st.sampled_from(["a", "b", "c"])
MIN_CALLS_PER_LIFE = 4
"""Calls between restarts, so that a run does not consist mostly of starts."""
POINTS = [
    "lookup",
    "owner files locked",
    "start",
    "partition",
    "complete",
    "write",
    "delete",
    "release",
    "owner files go",
]
INTERRUPTIONS = st.builds(
    Interruption,
    st.sampled_from(["hang", "hang", "kill", "fail"]),
    st.sampled_from(POINTS),
    st.sampled_from([0, 0, 1, 2]),
)
MAYBE_INTERRUPTED = st.just(NO_INTERRUPTION) | st.just(NO_INTERRUPTION) | INTERRUPTIONS
NUMBERS = st.integers(0, 3)


@st.composite
def allocations(draw: st.DrawFn) -> Allocation:
    gpus = tuple(sorted(draw(st.sets(st.integers(0, GPUS - 1), min_size=1, max_size=2))))
    kind = draw(st.sampled_from(["whole", "s1", "s2", "partition"]))
    if kind == "partition":
        return Allocation(gpus, partition=draw(st.sampled_from([2, 3])))
    return Allocation(gpus, share=None if kind == "whole" else kind)


class LifeCycle(AgentChecks):
    """Every rule makes one call to one agent."""

    @rule(slot_index=NUMBERS, uid=UIDS, allocation=allocations())
    def prepare(self, slot_index: int, uid: str, allocation: Allocation) -> None:
        self._prepare(self._running_slot(slot_index), uid, allocation, NO_INTERRUPTION)

    @rule(slot_index=NUMBERS, uid=UIDS, allocation=allocations(), interruption=INTERRUPTIONS)
    def prepare_with_interruption(
        self, slot_index: int, uid: str, allocation: Allocation, interruption: Interruption
    ) -> None:
        self._prepare(self._running_slot(slot_index), uid, allocation, interruption)

    @precondition(lambda self: any(directory.prepared_claims for directory in self.directories))
    @rule(slot_index=NUMBERS, number=NUMBERS, partition=st.sampled_from([0, 0, 2, 3]), interruption=MAYBE_INTERRUPTED)
    def prepare_again(self, slot_index: int, number: int, partition: int, interruption: Interruption) -> None:
        """Prepare a claim again, unchanged or with another configuration of the same devices."""
        slot = self._running_slot(slot_index)
        prepared_claims = sorted(slot.directory.prepared_claims.items())
        if prepared_claims:
            uid, prepared_claim = prepared_claims[number % len(prepared_claims)]
            allocation = prepared_claim.allocation
            if partition and not allocation.share:
                allocation = Allocation(allocation.gpus, partition=partition)
            self._prepare(slot, uid, allocation, interruption)

    @precondition(
        lambda self: any(directory.prepared_claims or directory.unconfirmed for directory in self.directories)
    )
    @rule(slot_index=NUMBERS, number=NUMBERS, interruption=MAYBE_INTERRUPTED)
    def unprepare(self, slot_index: int, number: int, interruption: Interruption) -> None:
        slot = self._running_slot(slot_index)
        known = sorted(slot.directory.prepared_claims.keys() | slot.directory.unconfirmed)
        if known:
            self._unprepare(slot, known[number % len(known)], interruption)

    @rule(slot_index=NUMBERS, uid=UIDS)
    def unprepare_any_claim(self, slot_index: int, uid: str) -> None:
        self._unprepare(self._running_slot(slot_index), uid, NO_INTERRUPTION)

    @precondition(lambda self: self.call_count >= MIN_CALLS_PER_LIFE)
    @rule(slot_index=NUMBERS, reboot=st.sampled_from([False, False, True]))
    def kill(self, slot_index: int, reboot: bool) -> None:
        if reboot:
            return self._reboot()
        self.call_count = 0
        self._stop_agent(self._running_slot(slot_index))
        self._record_event("killed between calls")
        return None

    @rule(slot_index=NUMBERS, interruption=MAYBE_INTERRUPTED)
    def start_or_repair(self, slot_index: int, interruption: Interruption) -> None:
        """Start an agent that is not running, and repair its claims as it does every minute."""
        slot = self.slots[slot_index % len(self.slots)]
        if slot.agent is None:
            self._start(slot, recover=False)
        self._recover(slot, interruption)

    @rule(number=st.integers(0, GPUS - 1), out=st.booleans())
    def unplug_or_replug(self, number: int, out: bool) -> None:
        self.host.plug(set() if not out else {number})

    @precondition(lambda self: any(slot.hung for slot in self.slots))
    @rule(number=NUMBERS, action=st.sampled_from(["", "fail"]))
    def resume_hanging_call(self, number: int, action: str) -> None:
        hanging_calls = [(slot, hung) for slot in self.slots for hung in slot.hung]
        slot, hung = hanging_calls[number % len(hanging_calls)]
        assert slot.agent is not None
        before = slot.directory.ledger()
        event = slot.agent.send_call("resume", hung=hung.number, action=action)
        started = slot.directory.ledger().keys() - before.keys()
        assert not started, f"{started} started after the timeout of its caller"
        slot.hung.remove(hung)
        self._note_locks(slot, event)
        if hung.uid not in slot.directory.prepared_claims:
            slot.directory.unconfirmed.add(hung.uid)
        self._record_event("hangs that ended")

    @rule(number=NUMBERS, notice=st.sampled_from([False, False, True]))
    def notice_or_cancel(self, number: int, notice: bool) -> None:
        directory = self.directories[number % len(self.directories)]
        running = [slot for slot in self.slots if slot.directory is directory and slot.agent is not None]
        for slot in running:
            assert slot.agent is not None
            slot.agent.send_call("notice" if notice else "cancel")
            directory.is_reclaimed = notice

    @rule(number=NUMBERS, uid=UIDS, text=st.sampled_from([None, "", "{}", '{"cdiVersion": "1.0.0"}']))
    def damage_spec(self, number: int, uid: str, text: str | None) -> None:
        directory = self.directories[number % len(self.directories)]
        if uid in directory.prepared_claims:
            file = self.root / "cdi" / f"{directory.driver}-claim_{uid}.json"
            if file.exists():
                file.unlink() if text is None else file.write_text(text)
            directory.prepared_claims[uid].intact = False

    @invariant()
    def disk_matches_the_model(self) -> None:
        if hasattr(self, "slots"):
            self._record_event("steps")
            in_progress = {
                directory.name: {hung.uid for slot in self.slots if slot.directory is directory for hung in slot.hung}
                for directory in self.directories
            }
            self.host.check(self.directories, in_progress)
