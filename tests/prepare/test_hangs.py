"""Device setups that hang at any point: other devices are not affected, waiting calls time out, and nothing remains."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

import tiers
from deadlines import RunningClock
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.kubelet_plugin.claim_executor import ClaimExecutor
from dra_agent.prepare import RecoveryReport
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.prepare.locks import MAX_WAITERS, KeyedLocks, LockedError
from dra_agent.prepare.recovery import ExecutorRunner
from eventually import eventually_async
from prepare.simulated_node import SimulatedNode, claim, partition

P = ParamSpec("P")
T = TypeVar("T")
TIMEOUT_S = 60.0
SICK = "gpu-0"
WITH_SETUP = claim("sick", SICK, "gpu-1", config=[partition(2)])


class Hang:
    """Blocks the first thread that reaches a point of the node until it is released."""

    def __init__(self, node: SimulatedNode, point: str) -> None:
        self.reached = threading.Event()
        self.released = threading.Event()
        self.point = point
        points = node.points
        node.points = self._pass  # type: ignore[assignment]
        for part in (node.partitions, node.memory, node.specs, node.metadata):
            if part is not None:
                part.points = self._pass  # type: ignore[assignment]
        self._count = points
        self._lookup(node)

    def _pass(self, name: str) -> None:
        if name == self.point and not self.reached.is_set():
            self.reached.set()
            assert self.released.wait(TIMEOUT_S * 4)

    def _lookup(self, node: SimulatedNode) -> None:
        def block_lookup(pool: str, name: str) -> None:
            if name == SICK:
                self._pass("lookup")

        node.before_lookup = block_lookup


class HangingExecutor(DaemonExecutor):
    """Starts the timeout of a call once the call hangs."""

    def __init__(self, hang: Hang) -> None:
        super().__init__(1, "hanging")
        self._hang = hang

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = super().submit(fn, *args, **kwargs)
        assert self._hang.reached.wait(TIMEOUT_S)
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


def assert_other_devices_work(node: SimulatedNode, executor: DaemonExecutor) -> None:
    """Prepare, repeat, repair and release claims of the other devices while one hangs."""

    def run_claim(number: int) -> None:
        claim_ = claim(f"other-{number}", f"gpu-{number}", config=[partition(1)])
        prepared = node.preparer.prepare(claim_)
        assert node.preparer.prepare(claim_) == prepared and node.usable(f"other-{number}")
        assert node.preparer.unprepare(f"other-{number}")

    for future in [executor.submit(run_claim, number) for number in range(2, 8)]:
        future.result(TIMEOUT_S)
    kept = node.preparer.prepare(claim("kept", "gpu-2"))
    node.specs.file("kept").unlink()
    report: RecoveryReport = executor.submit(node.preparer.recovery.recover).result(TIMEOUT_S)
    assert report.rebuilt == ("kept",) and report.problems == () and set(report.busy) <= {"sick"}
    assert node.preparer.prepare(claim("kept", "gpu-2")) == kept
    assert node.preparer.unprepare("kept")


def assert_waiting_calls_time_out(node: SimulatedNode, executor: DaemonExecutor) -> None:
    """A repeat and another claim for the device time out with an error that names its holder."""
    for claim_ in (WITH_SETUP, claim("next", SICK)):
        waiting = executor.submit(node.preparer.prepare, claim_, Deadline.of(0.05))
        with pytest.raises(LockedError, match="claim"):
            waiting.result(TIMEOUT_S)
    with pytest.raises(LockedError, match="has been in work on it"):
        executor.submit(node.preparer.unprepare, "sick", Deadline.of(0.05)).result(TIMEOUT_S)


def assert_recovered(node: SimulatedNode, hung: Future[Any]) -> None:
    hung.exception(TIMEOUT_S)
    assert node.preparer.recovery.recover().problems == ()
    held = {entry.uid for entry in node.ledger.entries()}
    assert held <= {"sick"} and set(node.hardware.values()) == held and set(node.specs.claims()) == held
    assert node.preparer.prepare(WITH_SETUP) and node.usable("sick")
    node.preparer.unprepare("sick")
    assert node.hardware == {} and node.ledger.entries() == [] and node.specs.claims() == {}
    assert node.preparer.claim_locks.held == node.preparer.device_locks.held == []


@pytest.mark.parametrize("point", PREPARE)
def test_a_hanging_prepare_affects_its_own_devices_only(tmp_path: Path, point: str) -> None:
    node = SimulatedNode(tmp_path, metadata=True)
    hang = Hang(node, point)
    with threads() as executor:
        hung = executor.submit(node.preparer.prepare, WITH_SETUP)
        assert hang.reached.wait(TIMEOUT_S)
        if point in ("before start", "before complete"):
            pass  # the in-memory ledger has one lock: only the deadline of the ledger counts here
        else:
            assert_other_devices_work(node, executor)
        assert_waiting_calls_time_out(node, executor)
        hang.released.set()
        assert_recovered(node, hung)


@pytest.mark.parametrize("point", UNPREPARE)
def test_a_hanging_release_affects_its_own_devices_only(tmp_path: Path, point: str) -> None:
    node = SimulatedNode(tmp_path, metadata=True)
    node.preparer.prepare(WITH_SETUP)
    hang = Hang(node, point)
    with threads() as executor:
        hung = executor.submit(node.preparer.unprepare, "sick")
        assert hang.reached.wait(TIMEOUT_S)
        assert_other_devices_work(node, executor)
        assert_waiting_calls_time_out(node, executor)
        hang.released.set()
        assert_recovered(node, hung)


def test_a_hanging_rollback_affects_its_own_devices_only(tmp_path: Path) -> None:
    node = SimulatedNode(tmp_path, metadata=True)
    hang = Hang(node, f"partition goes from {SICK}")
    with threads() as executor:
        failing = claim("sick", SICK, "gpu-1", config=[partition(2, fail=True)])
        hung = executor.submit(node.preparer.prepare, failing)
        assert hang.reached.wait(TIMEOUT_S)
        assert_other_devices_work(node, executor)
        assert_waiting_calls_time_out(node, executor)
        hang.released.set()
        with pytest.raises(RetryableError, match="no room"):
            hung.result(TIMEOUT_S)
        assert_recovered(node, hung)


def test_a_hanging_repair_delays_neither_claims_nor_the_round(tmp_path: Path) -> None:
    node = SimulatedNode(tmp_path, metadata=True)
    node.preparer.prepare(WITH_SETUP)
    node.preparer.prepare(claim("zz", "gpu-7"))
    node.specs.file("zz").unlink()
    node.crash_and_restart()
    hang = Hang(node, f"partition made on {SICK}")
    with threads() as executor:
        regular = ExecutorRunner(executor, timeout_s=TIMEOUT_S)
        short_timeout = ExecutorRunner(HangingExecutor(hang), timeout_s=0.05)

        def run_repair(description: str, call: Callable[[], T]) -> T:
            return (short_timeout if "sick" in description else regular)(description, call)

        report = executor.submit(node.preparer.recovery.recover, run_repair).result(4 * TIMEOUT_S)
        assert report.rebuilt == ("zz",)
        assert len(report.problems) == 1 and "repair of claim sick has not ended" in report.problems[0]
        # The next round skips it at once.
        assert executor.submit(node.preparer.recovery.repair).result(TIMEOUT_S).busy == ("sick",)
        assert node.preparer.unprepare("zz")
        assert_other_devices_work(node, executor)
        hang.released.set()
        deadline = Deadline.of(TIMEOUT_S)
        assert node.preparer.prepare(WITH_SETUP, deadline) and node.usable("sick")


@tiers.PATIENCE
def test_a_hundred_claims_for_a_hanging_device_leave_threads_free(tmp_path: Path) -> None:
    """The calls use the threads of the plugin, each with a deadline."""
    node = SimulatedNode(tmp_path)
    hang = Hang(node, f"partition made on {SICK}")
    executor = ClaimExecutor(8)

    async def prepare(claim_: dict[str, Any], deadline_s: float) -> object:
        uid = claim_["metadata"]["uid"]
        deadline = Deadline(deadline_s)
        return await executor.run(uid, "preparing", None, lambda: node.preparer.prepare(claim_, deadline), deadline_s)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        first = asyncio.create_task(prepare(WITH_SETUP, loop.time() + 4 * TIMEOUT_S))
        await asyncio.to_thread(hang.reached.wait, TIMEOUT_S)
        deadline_s = loop.time() + 4 * TIMEOUT_S
        tasks = [asyncio.create_task(prepare(claim(f"crowd-{number}", SICK), deadline_s)) for number in range(100)]
        # There are more claims than threads: excess calls are refused at once.
        await eventually_async(lambda: sum(task.done() for task in tasks) >= 100 - MAX_WAITERS)
        refused, waiting = [task for task in tasks if task.done()], [task for task in tasks if not task.done()]
        assert len(waiting) == MAX_WAITERS
        assert all(isinstance(task.exception(), LockedError) for task in refused)
        assert "sick" in str(refused[0].exception())
        assert await prepare(claim("healthy", "gpu-5", config=[partition(1)]), deadline_s)
        # The hanging call itself gets an error at its deadline.
        with pytest.raises(RetryableError, match="still preparing it"):
            await executor.run("sick", "preparing", None, lambda: None, loop.time() + 0.1)
        hang.released.set()
        assert await first
        for task in waiting:
            with pytest.raises(AgentError):
                await task

    try:
        asyncio.run(scenario())
    finally:
        hang.released.set()
        executor.close()


def agents(root: Path) -> tuple[SimulatedNode, SimulatedNode]:
    """Return two agents of a rolling update on one node."""
    worlds: list[SimulatedNode] = []
    for name in ("old", "new"):
        node = SimulatedNode(root)
        node.ledger = JournalLedger(root / "state", "boot-1", shared_as=name)
        node.locks = KeyedLocks(root / "state" / "locks", process=name)
        node.partitions.hardware = worlds[0].hardware if worlds else node.hardware
        node.start()
        worlds.append(node)
    worlds[1].hardware = worlds[0].hardware
    return worlds[0], worlds[1]


@pytest.mark.parametrize("point", [f"partition made on {SICK}", "before write", "after write", "lookup"])
def test_a_hang_in_one_agent_affects_nothing_else_in_the_other(tmp_path: Path, point: str) -> None:
    old, new = agents(tmp_path)
    hang = Hang(old, point)
    with threads() as executor:
        hung = executor.submit(old.preparer.prepare, WITH_SETUP)
        assert hang.reached.wait(TIMEOUT_S)
        assert_other_devices_work(new, executor)
        assert_other_devices_work(old, executor)
        for claim_ in (WITH_SETUP, claim("next", SICK)):
            with pytest.raises(LockedError, match=r"another agent has been in work on it \(pid \d+, old, for claim"):
                new.preparer.prepare(claim_, Deadline.of(0.05))
        if old.ledger.get("sick") is not None:
            with pytest.raises(LockedError, match="pid"):
                new.preparer.unprepare("sick", Deadline.of(0.05))
        hang.released.set()
        assert hung.result(TIMEOUT_S)
        assert new.preparer.prepare(WITH_SETUP) == hung.result() and new.preparer.unprepare("sick")
        assert old.hardware == {} and new.ledger.entries() == [] and new.specs.claims() == {}


@pytest.mark.parametrize("point", [f"partition goes from {SICK}", "before delete"])
def test_a_claim_being_released_is_not_restored_by_the_other_agent(tmp_path: Path, point: str) -> None:
    old, new = agents(tmp_path)
    old.preparer.prepare(WITH_SETUP)
    hang = Hang(old, point)
    with threads() as executor:
        hung = executor.submit(old.preparer.unprepare, "sick")
        assert hang.reached.wait(TIMEOUT_S)
        assert new.preparer.recovery.recover().busy == ("sick",)
        repeated = executor.submit(new.preparer.prepare, WITH_SETUP, Deadline.of(TIMEOUT_S))
        hang.released.set()
        assert hung.result(TIMEOUT_S) is True
        # The prepare runs after the release: it sets up the claim again.
        assert repeated.result(TIMEOUT_S) and new.usable("sick") and old.hardware == {SICK: "sick", "gpu-1": "sick"}


def test_a_hanging_prepare_whose_caller_timed_out_does_nothing(tmp_path: Path, running_clock: RunningClock) -> None:
    old, new = agents(tmp_path)
    hang = Hang(old, "lookup")
    deadline = Deadline.of(TIMEOUT_S)
    with threads() as executor:
        hung = executor.submit(old.preparer.prepare, WITH_SETUP, deadline)
        assert hang.reached.wait(TIMEOUT_S)
        # The kubelet unprepares the claim with the other agent, which succeeds.
        new.preparer.unprepare("sick")
        running_clock.pass_(TIMEOUT_S)
        hang.released.set()
        with pytest.raises(RetryableError, match="no longer waits"):
            hung.result(TIMEOUT_S)
    assert old.hardware == {} and new.ledger.entries() == [] and new.specs.claims() == {}
    assert new.preparer.prepare(WITH_SETUP) and new.preparer.unprepare("sick")


def test_a_claim_that_hangs_in_one_agent_is_kept_by_the_other(tmp_path: Path) -> None:
    old, new = agents(tmp_path)
    hang = Hang(old, f"partition made on {SICK}")
    with threads() as executor:
        hung = executor.submit(old.preparer.prepare, WITH_SETUP)
        assert hang.reached.wait(TIMEOUT_S)
        moved = claim("sick", "gpu-2")
        with pytest.raises(LockedError, match=r"another agent has been in work on it \(pid \d+, old, for claim"):
            new.preparer.prepare(moved, Deadline.of(TIMEOUT_S))
        assert set(old.hardware) == {SICK}
        hang.released.set()
        assert hung.result(TIMEOUT_S)
        with pytest.raises(PermanentError, match="unprepare it first"):
            new.preparer.prepare(moved)
        assert new.usable("sick") and new.preparer.unprepare("sick") and new.preparer.prepare(moved)
        assert old.hardware == {}


@pytest.mark.parametrize("moved", [True, False])
def test_a_release_waits_for_the_present_devices_of_the_claim(tmp_path: Path, moved: bool) -> None:
    """It does not wait for devices of an outdated ledger copy, at which another claim hangs."""
    old, new = agents(tmp_path)
    old.preparer.prepare(claim("a", SICK))
    new.preparer.unprepare("a")
    if moved:
        new.preparer.prepare(claim("a", "gpu-3"))
    hang = Hang(new, f"partition made on {SICK}")
    with threads() as executor:
        hung = executor.submit(new.preparer.prepare, WITH_SETUP)
        assert hang.reached.wait(TIMEOUT_S)
        assert old.preparer.unprepare("a", Deadline.of(TIMEOUT_S)) is moved
        hang.released.set()
        assert hung.result(TIMEOUT_S)


def test_a_hanging_release_keeps_the_spec_of_a_later_prepare(tmp_path: Path, running_clock: RunningClock) -> None:
    old, new = agents(tmp_path)
    old.preparer.prepare(claim("a", "gpu-0"))
    new.preparer.unprepare("a")
    moved = claim("a", "gpu-1")
    new.preparer.prepare(moved)
    hang = Hang(old, "before delete")
    with threads() as executor:
        hung = executor.submit(old.preparer.unprepare, "a", Deadline.of(TIMEOUT_S))
        assert hang.reached.wait(TIMEOUT_S)
        # A release by the other agent waits: the hanging call locks the present devices of the claim.
        with pytest.raises(LockedError):
            new.preparer.unprepare("a", Deadline.of(0.05))
        running_clock.pass_(TIMEOUT_S)
        hang.released.set()
        assert hung.result(TIMEOUT_S) is True
    assert new.preparer.prepare(moved) and new.usable("a")
