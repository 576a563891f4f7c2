"""The life of claims, as steps in any order; which agents there are is said by each subclass."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from prepare.life_cycle.asking import GPUS, NO_STOP, Asking
from prepare.life_cycle.wanted import Wanted
from prepare.life_cycle.words import Stop

UIDS = st.sampled_from(["a", "b", "c"])
BETWEEN_DEATHS = 4
"""Calls, so that a life is not mostly starts."""
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
STOPS = st.builds(
    Stop, st.sampled_from(["hang", "hang", "kill", "fail"]), st.sampled_from(POINTS), st.sampled_from([0, 0, 1, 2])
)
MAYBE = st.just(NO_STOP) | st.just(NO_STOP) | STOPS
NUMBERS = st.integers(0, 3)


@st.composite
def allocations(draw: st.DrawFn) -> Wanted:
    gpus = tuple(sorted(draw(st.sets(st.integers(0, GPUS - 1), min_size=1, max_size=2))))
    kind = draw(st.sampled_from(["whole", "s1", "s2", "partition"]))
    if kind == "partition":
        return Wanted(gpus, partition=draw(st.sampled_from([2, 3])))
    return Wanted(gpus, share=None if kind == "whole" else kind)


class LifeCycle(Asking):
    """Every rule asks one agent for one thing."""

    @rule(slot=NUMBERS, uid=UIDS, wanted=allocations())
    def prepare(self, slot: int, uid: str, wanted: Wanted) -> None:
        self._prepare(self._living(slot), uid, wanted, NO_STOP)

    @rule(slot=NUMBERS, uid=UIDS, wanted=allocations(), stop=STOPS)
    def prepare_and_stop(self, slot: int, uid: str, wanted: Wanted, stop: Stop) -> None:
        self._prepare(self._living(slot), uid, wanted, stop)

    @precondition(lambda self: any(side.promises for side in self.sides))
    @rule(slot=NUMBERS, number=NUMBERS, partition=st.sampled_from([0, 0, 2, 3]), stop=MAYBE)
    def prepare_again(self, slot: int, number: int, partition: int, stop: Stop) -> None:
        """As it was, or with the same devices set up in another way."""
        chosen = self._living(slot)
        promises = sorted(chosen.side.promises.items())
        if promises:
            uid, promise = promises[number % len(promises)]
            wanted = promise.wanted
            if partition and not wanted.share:
                wanted = Wanted(wanted.gpus, partition=partition)
            self._prepare(chosen, uid, wanted, stop)

    @precondition(lambda self: any(side.promises or side.loose for side in self.sides))
    @rule(slot=NUMBERS, number=NUMBERS, stop=MAYBE)
    def unprepare(self, slot: int, number: int, stop: Stop) -> None:
        chosen = self._living(slot)
        known = sorted(chosen.side.promises.keys() | chosen.side.loose)
        if known:
            self._unprepare(chosen, known[number % len(known)], stop)

    @rule(slot=NUMBERS, uid=UIDS)
    def unprepare_whatever_it_is(self, slot: int, uid: str) -> None:
        self._unprepare(self._living(slot), uid, NO_STOP)

    @precondition(lambda self: self.asked >= BETWEEN_DEATHS)
    @rule(slot=NUMBERS, reboot=st.sampled_from([False, False, True]))
    def kill(self, slot: int, reboot: bool) -> None:
        if reboot:
            return self._reboot()
        self.asked = 0
        self._ended(self._living(slot))
        self._count("killed between calls")
        return None

    @rule(slot=NUMBERS, stop=MAYBE)
    def start_or_repair(self, slot: int, stop: Stop) -> None:
        """An agent that is dead comes back; one that lives looks after its claims, as it does every minute."""
        chosen = self.slots[slot % len(self.slots)]
        if chosen.agent is None:
            self._start(chosen, recover=False)
        self._recover(chosen, stop)

    @rule(number=st.integers(0, GPUS - 1), out=st.booleans())
    def unplug_or_replug(self, number: int, out: bool) -> None:
        self.host.plug(set() if not out else {number})

    @precondition(lambda self: any(slot.hung for slot in self.slots))
    @rule(number=NUMBERS, how=st.sampled_from(["", "fail"]))
    def what_hangs_ends(self, number: int, how: str) -> None:
        hanging = [(slot, hung) for slot in self.slots for hung in slot.hung]
        slot, hung = hanging[number % len(hanging)]
        assert slot.agent is not None
        before = slot.side.ledger()
        event = slot.agent.ask("go on", hung=hung.number, how=how)
        begun = slot.side.ledger().keys() - before.keys()
        assert not begun, f"{begun} was begun when its caller had given up"
        slot.hung.remove(hung)
        self._note_locks(slot, event)
        if hung.uid not in slot.side.promises:
            slot.side.loose.add(hung.uid)
        self._count("hangs that ended")

    @rule(number=NUMBERS, notice=st.sampled_from([False, False, True]))
    def notice_or_cancel(self, number: int, notice: bool) -> None:
        side = self.sides[number % len(self.sides)]
        living = [slot for slot in self.slots if slot.side is side and slot.agent is not None]
        for slot in living:
            assert slot.agent is not None
            slot.agent.ask("notice" if notice else "cancel")
            side.noticed = notice

    @rule(number=NUMBERS, uid=UIDS, text=st.sampled_from([None, "", "{}", '{"cdiVersion": "1.0.0"}']))
    def damage_spec(self, number: int, uid: str, text: str | None) -> None:
        side = self.sides[number % len(self.sides)]
        if uid in side.promises:
            file = self.root / "cdi" / f"{side.driver}-claim_{uid}.json"
            if file.exists():
                file.unlink() if text is None else file.write_text(text)
            side.promises[uid].whole = False

    @invariant()
    def the_disk_is_as_it_has_to_be(self) -> None:
        if hasattr(self, "slots"):
            self._count("steps")
            in_work = {
                side.name: {hung.uid for slot in self.slots if slot.side is side for hung in slot.hung}
                for side in self.sides
            }
            self.host.check(self.sides, in_work)
