"""Set-ups that hang at any point: every other device goes on, who waits is told, and afterwards everything is whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.inventory.model import Device
from dra_agent.kubelet_plugin.claim_executor import ClaimExecutor
from dra_agent.prepare import RecoveryReport
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.prepare.locks import MAX_WAITERS, KeyedLocks, LockedError
from dra_agent.prepare.recovery import ExecutorRunner
from eventually import eventually, eventually_async
from prepare.simulated_world import World, claim, partition

P = ParamSpec("P")
T = TypeVar("T")
GENEROUS_S = 60.0
SICK = "gpu-0"
WITH_SETUP = claim("sick", SICK, "gpu-1", config=[partition(2)])


class Hang:
    """Stops whoever passes one point of the world, on a thread of its own, until it is released."""

    def __init__(self, world: World, point: str) -> None:
        self.reached = threading.Event()
        self.released = threading.Event()
        self.point = point
        passed = world.points
        world.points = self._pass  # type: ignore[assignment]
        for part in (world.partitions, world.memory, world.specs, world.metadata):
            if part is not None:
                part.points = self._pass  # type: ignore[assignment]
        self._count = passed
        self._lookup(world)

    def _pass(self, name: str) -> None:
        if name == self.point and not self.reached.is_set():
            self.reached.set()
            assert self.released.wait(GENEROUS_S * 4)

    def _lookup(self, world: World) -> None:
        find: Callable[[str, str], Device | None] = world.preparer._lookup

        def slow(pool: str, name: str) -> Device | None:
            if name == SICK:
                self._pass("lookup")
            return find(pool, name)

        world.preparer._lookup = slow


class WhenItHangs(DaemonExecutor):
    """Has a call waited for from the moment on in which it hangs."""

    def __init__(self, hang: Hang) -> None:
        super().__init__(1, "hanging")
        self._hang = hang

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = super().submit(fn, *args, **kwargs)
        assert self._hang.reached.wait(GENEROUS_S)
        return future


@contextmanager
def threads() -> Iterator[DaemonExecutor]:
    executor = DaemonExecutor(400, "test")
    try:
        yield executor
    finally:
        executor.shutdown()


PREPARE = [
    "lookup",
    "before start",
    f"partition made on {SICK}",
    "before complete",
    "after complete",
    "before metadata",
    "before write",
    "after write",
]
UNPREPARE = [
    "before delete",
    "before metadata goes",
    f"partition goes from {SICK}",
    "before release",
    "after release",
]


def others_go_on(world: World, executor: DaemonExecutor) -> None:
    """Prepare, repeat, repair and release claims of every other device while one hangs."""

    def live(number: int) -> None:
        wanted = claim(f"other-{number}", f"gpu-{number}", config=[partition(1)])
        answer = world.preparer.prepare(wanted)
        assert world.preparer.prepare(wanted) == answer and world.usable(f"other-{number}")
        assert world.preparer.unprepare(f"other-{number}")

    for done in [executor.submit(live, number) for number in range(2, 8)]:
        done.result(GENEROUS_S)
    kept = world.preparer.prepare(claim("kept", "gpu-2"))
    world.specs.file("kept").unlink()
    report: RecoveryReport = executor.submit(world.preparer.recover).result(GENEROUS_S)
    assert report.rebuilt == ("kept",) and report.problems == () and set(report.busy) <= {"sick"}
    assert world.preparer.prepare(claim("kept", "gpu-2")) == kept
    assert world.preparer.unprepare("kept")


def who_waits_is_told(world: World, executor: DaemonExecutor) -> None:
    """A repeat and another claim for the device give up at their deadline, with who has it."""
    for wanted in (WITH_SETUP, claim("next", SICK)):
        waiting = executor.submit(world.preparer.prepare, wanted, Deadline.of(0.05))
        with pytest.raises(LockedError, match="claim"):
            waiting.result(GENEROUS_S)
    with pytest.raises(LockedError, match="has been in work on it"):
        executor.submit(world.preparer.unprepare, "sick", Deadline.of(0.05)).result(GENEROUS_S)


def whole_again(world: World, hung: Future[Any]) -> None:
    hung.exception(GENEROUS_S)
    assert world.preparer.recover().problems == ()
    held = {entry.uid for entry in world.ledger.entries()}
    assert held <= {"sick"} and set(world.hardware.values()) == held and set(world.specs.claims()) == held
    assert world.preparer.prepare(WITH_SETUP) and world.usable("sick")
    world.preparer.unprepare("sick")
    assert world.hardware == {} and world.ledger.entries() == [] and world.specs.claims() == {}
    assert world.preparer._claims._locks == {} and world.preparer._devices._locks == {}


@pytest.mark.parametrize("point", PREPARE)
def test_a_prepare_that_hangs_holds_up_its_own_devices_only(tmp_path: Path, point: str) -> None:
    world = World(tmp_path, metadata=True)
    hang = Hang(world, point)
    with threads() as executor:
        hung = executor.submit(world.preparer.prepare, WITH_SETUP)
        assert hang.reached.wait(GENEROUS_S)
        if point in ("before start", "before complete"):
            pass  # the stand-in for the ledger is one lock for all: only its own deadline counts there
        else:
            others_go_on(world, executor)
        who_waits_is_told(world, executor)
        hang.released.set()
        whole_again(world, hung)


@pytest.mark.parametrize("point", UNPREPARE)
def test_a_release_that_hangs_holds_up_its_own_devices_only(tmp_path: Path, point: str) -> None:
    world = World(tmp_path, metadata=True)
    world.preparer.prepare(WITH_SETUP)
    hang = Hang(world, point)
    with threads() as executor:
        hung = executor.submit(world.preparer.unprepare, "sick")
        assert hang.reached.wait(GENEROUS_S)
        others_go_on(world, executor)
        who_waits_is_told(world, executor)
        hang.released.set()
        whole_again(world, hung)


def test_a_rollback_that_hangs_holds_up_its_own_devices_only(tmp_path: Path) -> None:
    world = World(tmp_path, metadata=True)
    hang = Hang(world, f"partition goes from {SICK}")
    with threads() as executor:
        failing = claim("sick", SICK, "gpu-1", config=[partition(2, fail=True)])
        hung = executor.submit(world.preparer.prepare, failing)
        assert hang.reached.wait(GENEROUS_S)
        others_go_on(world, executor)
        who_waits_is_told(world, executor)
        hang.released.set()
        with pytest.raises(RetryableError, match="no room"):
            hung.result(GENEROUS_S)
        whole_again(world, hung)


def test_a_repair_that_hangs_holds_up_neither_the_other_claims_nor_the_round(tmp_path: Path) -> None:
    world = World(tmp_path, metadata=True)
    world.preparer.prepare(WITH_SETUP)
    world.preparer.prepare(claim("zz", "gpu-7"))
    world.specs.file("zz").unlink()
    world.crash_and_restart()
    hang = Hang(world, f"partition made on {SICK}")
    with threads() as executor:
        on_threads = ExecutorRunner(executor, timeout_s=GENEROUS_S)
        given_up = ExecutorRunner(WhenItHangs(hang), timeout_s=0.05)

        def apart(description: str, call: Callable[[], T]) -> T:
            return (given_up if "sick" in description else on_threads)(description, call)

        report = executor.submit(world.preparer.recover, apart).result(4 * GENEROUS_S)
        assert report.rebuilt == ("zz",)
        assert len(report.problems) == 1 and "repair of claim sick has not ended" in report.problems[0]
        # The next round passes it over at once.
        assert executor.submit(world.preparer.repair).result(GENEROUS_S).busy == ("sick",)
        assert world.preparer.unprepare("zz")
        others_go_on(world, executor)
        hang.released.set()
        deadline = Deadline.of(GENEROUS_S)
        assert world.preparer.prepare(WITH_SETUP, deadline) and world.usable("sick")


def test_a_hundred_claims_for_a_sick_device_leave_the_threads_to_others(tmp_path: Path) -> None:
    """As the kubelet asks: through the plugin's threads, each call with its deadline."""
    world = World(tmp_path)
    hang = Hang(world, f"partition made on {SICK}")
    turns = ClaimExecutor(8)

    async def ask(wanted: dict[str, Any], until: float) -> object:
        uid = wanted["metadata"]["uid"]
        deadline = Deadline(until)
        return await turns.run(uid, "preparing", None, lambda: world.preparer.prepare(wanted, deadline), until)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        first = asyncio.create_task(ask(WITH_SETUP, loop.time() + 4 * GENEROUS_S))
        await asyncio.to_thread(hang.reached.wait, GENEROUS_S)
        until = loop.time() + 4 * GENEROUS_S
        crowd = [asyncio.create_task(ask(claim(f"crowd-{n}", SICK), until)) for n in range(100)]
        # More claims than threads, and none of the threads is lost: what is too much is refused at once.
        await eventually_async(lambda: sum(task.done() for task in crowd) >= 100 - MAX_WAITERS)
        refused, waiting = [task for task in crowd if task.done()], [task for task in crowd if not task.done()]
        assert len(waiting) == MAX_WAITERS
        assert all(isinstance(task.exception(), LockedError) for task in refused)
        assert "sick" in str(refused[0].exception())
        assert await ask(claim("healthy", "gpu-5", config=[partition(1)]), until)
        # The hung claim itself is answered at its deadline.
        with pytest.raises(RetryableError, match="still preparing it"):
            await turns.run("sick", "preparing", None, lambda: None, loop.time() + 0.1)
        hang.released.set()
        assert await first
        for task in waiting:
            with pytest.raises(AgentError):
                await task

    try:
        asyncio.run(story())
    finally:
        hang.released.set()
        turns.close()


def agents(root: Path) -> tuple[World, World]:
    """Two agents of a rolling update, on one host."""
    worlds: list[World] = []
    for name in ("old", "new"):
        world = World(root)
        world.ledger = JournalLedger(root / "state", "boot-1", shared_as=name)
        world.locks = KeyedLocks(root / "state" / "locks", process=name)
        world.partitions.hardware = worlds[0].hardware if worlds else world.hardware
        world.start()
        worlds.append(world)
    worlds[1].hardware = worlds[0].hardware
    return worlds[0], worlds[1]


@pytest.mark.parametrize("point", [f"partition made on {SICK}", "before write", "after write", "lookup"])
def test_what_hangs_in_one_agent_holds_up_nothing_else_in_the_other(tmp_path: Path, point: str) -> None:
    old, new = agents(tmp_path)
    hang = Hang(old, point)
    with threads() as executor:
        hung = executor.submit(old.preparer.prepare, WITH_SETUP)
        assert hang.reached.wait(GENEROUS_S)
        others_go_on(new, executor)
        others_go_on(old, executor)
        for wanted in (WITH_SETUP, claim("next", SICK)):
            with pytest.raises(LockedError, match=r"another agent has been in work on it \(pid \d+, old, for claim"):
                new.preparer.prepare(wanted, Deadline.of(0.05))
        if old.ledger.get("sick") is not None:
            with pytest.raises(LockedError, match="pid"):
                new.preparer.unprepare("sick", Deadline.of(0.05))
        hang.released.set()
        assert hung.result(GENEROUS_S)
        assert new.preparer.prepare(WITH_SETUP) == hung.result() and new.preparer.unprepare("sick")
        assert old.hardware == {} and new.ledger.entries() == [] and new.specs.claims() == {}


@pytest.mark.parametrize("point", [f"partition goes from {SICK}", "before delete"])
def test_a_claim_that_one_agent_releases_is_not_brought_back_by_the_other(tmp_path: Path, point: str) -> None:
    old, new = agents(tmp_path)
    old.preparer.prepare(WITH_SETUP)
    hang = Hang(old, point)
    with threads() as executor:
        hung = executor.submit(old.preparer.unprepare, "sick")
        assert hang.reached.wait(GENEROUS_S)
        assert new.preparer.recover().busy == ("sick",)
        repeated = executor.submit(new.preparer.prepare, WITH_SETUP, Deadline.of(GENEROUS_S))
        hang.released.set()
        assert hung.result(GENEROUS_S) is True
        # It came after: the claim is prepared anew, not answered from what was there.
        assert repeated.result(GENEROUS_S) and new.usable("sick") and old.hardware == {SICK: "sick", "gpu-1": "sick"}


def test_a_prepare_whose_caller_gave_up_while_it_hung_begins_nothing(tmp_path: Path) -> None:
    old, new = agents(tmp_path)
    hang = Hang(old, "lookup")
    patience = Deadline.of(0.2)
    with threads() as executor:
        hung = executor.submit(old.preparer.prepare, WITH_SETUP, patience)
        assert hang.reached.wait(GENEROUS_S)
        # The kubelet asks the other agent to release the claim, and is told that it is.
        new.preparer.unprepare("sick")
        eventually(lambda: not patience.remaining())
        hang.released.set()
        with pytest.raises(RetryableError, match="no longer waits"):
            hung.result(GENEROUS_S)
    assert old.hardware == {} and new.ledger.entries() == [] and new.specs.claims() == {}
    assert new.preparer.prepare(WITH_SETUP) and new.preparer.unprepare("sick")


def test_a_claim_that_one_agent_hangs_with_is_not_undone_by_the_other_for_another_allocation(tmp_path: Path) -> None:
    old, new = agents(tmp_path)
    hang = Hang(old, f"partition made on {SICK}")
    with threads() as executor:
        hung = executor.submit(old.preparer.prepare, WITH_SETUP)
        assert hang.reached.wait(GENEROUS_S)
        moved = claim("sick", "gpu-2")
        with pytest.raises(LockedError, match=r"another agent has been in work on it \(pid \d+, old, for claim"):
            new.preparer.prepare(moved, Deadline.of(GENEROUS_S))
        assert set(old.hardware) == {SICK}
        hang.released.set()
        assert hung.result(GENEROUS_S)
        with pytest.raises(PermanentError, match="unprepare it first"):
            new.preparer.prepare(moved)
        assert new.usable("sick") and new.preparer.unprepare("sick") and new.preparer.prepare(moved)
        assert old.hardware == {}


@pytest.mark.parametrize("moved", [True, False])
def test_a_release_waits_for_the_devices_that_the_claim_has_now(tmp_path: Path, moved: bool) -> None:
    """Not for those that it had when this agent read the ledger last, at which another claim hangs by now."""
    old, new = agents(tmp_path)
    old.preparer.prepare(claim("a", SICK))
    new.preparer.unprepare("a")
    if moved:
        new.preparer.prepare(claim("a", "gpu-3"))
    hang = Hang(new, f"partition made on {SICK}")
    with threads() as executor:
        hung = executor.submit(new.preparer.prepare, WITH_SETUP)
        assert hang.reached.wait(GENEROUS_S)
        assert old.preparer.unprepare("a", Deadline.of(GENEROUS_S)) is moved
        hang.released.set()
        assert hung.result(GENEROUS_S)


def test_a_release_that_hangs_does_not_take_the_spec_of_the_claim_s_next_life(tmp_path: Path) -> None:
    old, new = agents(tmp_path)
    old.preparer.prepare(claim("a", "gpu-0"))
    new.preparer.unprepare("a")
    moved = claim("a", "gpu-1")
    new.preparer.prepare(moved)
    hang = Hang(old, "before delete")
    with threads() as executor:
        patience = Deadline.of(0.2)
        hung = executor.submit(old.preparer.unprepare, "a", patience)
        assert hang.reached.wait(GENEROUS_S)
        # Whoever asks the other agent meanwhile waits: what hangs has the devices that the claim has now.
        with pytest.raises(LockedError):
            new.preparer.unprepare("a", Deadline.of(0.05))
        eventually(lambda: not patience.remaining())
        hang.released.set()
        assert hung.result(GENEROUS_S) is True
    assert new.preparer.prepare(moved) and new.usable("a")
