"""Repair of single claims, rollback of abandoned claims, configuration errors, and the phases of a prepare."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dra_agent.cdi.edits import EditProviders
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.prepare import Preparer, allocation, record
from dra_agent.prepare.config import ConfigurationError, decode
from dra_agent.prepare.ledger import HeldDevice, LedgerEntry
from dra_agent.prepare.locks import KeyedLocks, LockedError
from dra_agent.prepare.recovery import REPAIR_TIMEOUT_S, ExecutorRunner, RecoveryReport, repair_all, undo_abandoned
from eventually import DEADLINE_S
from prepare.simulated_node import DRIVER, POOL, MemoryLedger, Partitions, Points, SimulatedNode, claim, partition


def entry(uid: str, *devices: str) -> LedgerEntry:
    return LedgerEntry(uid, "default", f"claim-{uid}", tuple(HeldDevice(POOL, name, "gpus") for name in devices))


def test_each_claim_is_repaired_independently() -> None:
    def repair(uid: str) -> bool | None:
        match uid:
            case "locked":
                raise LockedError("is in work")
            case "sick":
                raise RetryableError("does not answer")
            case "bug":
                raise ZeroDivisionError("x")
        return {"changed": True, "whole": False, "begun": None}[uid]

    report = repair_all([entry(uid) for uid in ("locked", "sick", "bug", "changed", "whole", "begun")], repair)
    assert report == RecoveryReport(
        kept=("whole",),
        rebuilt=("changed",),
        rolled_back=("begun",),
        removed=(),
        problems=(
            "claim default/claim-sick (sick): does not answer",
            "claim default/claim-bug (bug): unexpected ZeroDivisionError('x')",
        ),
        busy=("locked",),
    )
    assert RecoveryReport() == RecoveryReport((), (), (), (), (), ())


def test_a_repair_that_timed_out_in_the_queue_never_runs() -> None:
    started, gate, results = threading.Event(), threading.Event(), []
    executor = DaemonExecutor(1, "test")

    def hang() -> None:
        started.set()
        gate.wait(DEADLINE_S)

    executor.submit(hang)
    assert started.wait(DEADLINE_S)
    with pytest.raises(RetryableError, match="repair of b has not ended within 0 s"):
        ExecutorRunner(executor, 0.05)("repair of b", lambda: results.append("b"))
    gate.set()
    assert ExecutorRunner(executor, DEADLINE_S)("repair of c", lambda: "c") == "c"
    assert results == []


class LateFuture(Future[Any]):
    """Completes at the moment of its timeout."""

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.set_result("late")
            raise TimeoutError
        return super().result(timeout)


class LateExecutor(Executor):
    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        return LateFuture()


def test_a_repair_that_ends_at_its_timeout_has_succeeded() -> None:
    assert ExecutorRunner(LateExecutor(), DEADLINE_S)("repair of a", lambda: "late") == "late"


def test_a_round_of_repairs_has_a_timeout() -> None:
    assert ExecutorRunner(DaemonExecutor(1, "test")).timeout_s == REPAIR_TIMEOUT_S
    assert 0 < REPAIR_TIMEOUT_S < 60


def test_a_timeout_error_of_the_call_itself_is_passed_on() -> None:
    def fail() -> None:
        raise TimeoutError("of the driver")

    with pytest.raises(TimeoutError, match="of the driver"):
        ExecutorRunner(DaemonExecutor(1, "test"), DEADLINE_S)("repair", fail)


def test_an_abandoned_claim_that_cannot_be_undone_is_skipped() -> None:
    ledger = MemoryLedger(Points(), {})
    for entry_ in (entry("a", "gpu-0"), entry("b", "gpu-1"), entry("elsewhere", "gpu-7")):
        ledger.start(entry_, durable=True)
    undone = []

    def undo(other: LedgerEntry) -> None:
        if other.uid == "a":
            raise RetryableError("the driver does not answer")
        undone.append(other.uid)

    claim_ = entry("wanted", "gpu-0", "gpu-1")
    assert undo_abandoned(claim_, ledger, KeyedLocks(), KeyedLocks(), undo, Deadline.of(DEADLINE_S))
    assert undone == ["b"]
    undone.clear()
    claims = KeyedLocks()
    with claims.hold(["b"], Deadline.of(0)):
        assert not undo_abandoned(claim_, ledger, claims, KeyedLocks(), undo, Deadline.of(DEADLINE_S))
    assert undone == [], "a claim with a running operation is not abandoned"


def test_a_configuration_error_names_claim_and_field(node: SimulatedNode) -> None:
    invalid = partition()
    del invalid["opaque"]["parameters"]["size"]
    with pytest.raises(ConfigurationError) as error:
        node.preparer.prepare(claim("a", "gpu-0", config=[invalid]))
    assert str(error.value) == (
        "claim default/claim-a: status.allocation.devices.config[0].opaque.parameters.size: is missing; "
        "correct the settings"
    )
    version, kind = Partitions.kind
    with pytest.raises(ConfigurationError, match="known kinds: none$"):
        decode({"apiVersion": version, "kind": kind}, {}, field="x")
    for part in ({"kind": kind}, {"apiVersion": version}):
        (missing_name,) = {"apiVersion", "kind"} - part.keys()
        with pytest.raises(ConfigurationError, match=f"^x.{missing_name}: is missing"):
            decode(part, {}, field="x")


def test_a_claim_without_configuration_or_pod_is_valid() -> None:
    read = allocation.read(claim("a", "gpu-0"), DRIVER)
    assert record.digest(read) == "" and read.pod_claim_name is None
    (device,) = read.devices
    assert not device.admin_access and device.share_id is None


def test_the_pods_of_a_claim_are_recorded(node: SimulatedNode) -> None:
    pods = [{"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in ("p", "q")]
    group = {"resource": "podgroups", "apiGroup": "scheduling.k8s.io", "name": "g", "uid": "uid-g"}
    for uid, device, consumers, expected in (
        ("a", "gpu-0", pods, {"uid-p", "uid-q"}),
        ("b", "gpu-1", [*pods, group], set[str]()),  # the pods of a group are not known
    ):
        given = claim(uid, device)
        given["status"]["reservedFor"] = consumers
        node.preparer.prepare(given)
        entry = node.ledger.get(uid)
        assert entry is not None and record.pods(entry) == expected


def test_durations_of_all_phases_are_observed(node: SimulatedNode) -> None:
    observed: list[tuple[str, float]] = []
    preparer = Preparer(
        DRIVER,
        node.ledger,
        node.specs,
        node.lookup,
        node="node-a",
        host=node.host,
        edit_providers=EditProviders(node.host, directories=[node.cdi]),
        setups=[node.partitions],
        observe_phase=lambda phase, seconds: observed.append((phase, seconds)),
    )
    start = time.perf_counter()
    preparer.prepare(claim("plain", "gpu-0"))
    preparer.prepare(claim("parted", "gpu-1", config=[partition()]))
    total = time.perf_counter() - start
    assert [phase for phase, _ in observed] == ["lock", "ledger", "cdi", "lock", "ledger", "setup", "ledger", "cdi"]
    assert all(0 <= seconds <= total for _, seconds in observed)


def test_a_stop_ends_the_repairs_without_an_error(caplog: pytest.LogCaptureFixture) -> None:
    executor = DaemonExecutor(1, "test")
    started, may_end = threading.Event(), threading.Event()

    def repair(uid: str) -> bool:
        started.set()
        assert may_end.wait(DEADLINE_S)
        return False

    def stop() -> None:
        assert started.wait(DEADLINE_S)
        executor.shutdown()
        may_end.set()

    stopping = threading.Thread(target=stop)
    stopping.start()
    report = repair_all([entry("a"), entry("b"), entry("c")], repair, ExecutorRunner(executor, DEADLINE_S))
    stopping.join()
    assert report == RecoveryReport(kept=("a",)) and not caplog.records


class Interleaving:
    """Runs an action on another thread at one call or return of the parts of a node that recovery uses."""

    def __init__(self, patch: pytest.MonkeyPatch, node: SimulatedNode, at: int, action: Callable[[], object]) -> None:
        self.steps = 0
        self._at = at
        self._thread = threading.Thread(target=action)
        self._caller = threading.get_ident()
        assert node.metadata is not None
        parts: list[tuple[object, tuple[str, ...]]] = [
            (node.specs, ("claims", "delete", "remove_leftovers")),
            (node.metadata, ("claims", "delete")),
            (node.ledger, ("entries", "get")),
        ]
        for part, names in parts:
            for name in names:
                patch.setattr(part, name, self._wrap(getattr(part, name)))

    def _wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            self._step()
            result = function(*arguments)
            self._step()
            return result

        return wrapped

    def _step(self) -> None:
        if threading.get_ident() != self._caller:
            return
        self.steps += 1
        if self.steps == self._at:
            self._thread.start()
            # It waits for recovery where both work on one claim.
            self._thread.join(0.2)

    def end(self) -> bool:
        """Wait for the action; return whether its step was reached."""
        if self.steps < self._at:
            return False
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return True


@pytest.mark.parametrize("uid", ["new", "stranger"])
def test_a_claim_that_is_prepared_while_files_are_removed_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: str
) -> None:
    """Claims are prepared from the start of an agent on, also one whose files an earlier run has left."""
    for step in itertools.count(1):
        node = SimulatedNode(tmp_path / str(step), metadata=True)
        assert node.metadata is not None
        node.preparer.prepare(claim("stranger", "gpu-0"))
        node.memory.disk.clear()
        with monkeypatch.context() as patch:
            prepare = partial(node.preparer.prepare, claim(uid, "gpu-1"))
            interleaving = Interleaving(patch, node, step, prepare)
            assert node.preparer.recovery.recover().problems == ()
            if not interleaving.end():
                break
        assert node.usable(uid), f"prepared at step {step} of {interleaving.steps}"
        assert (uid == "stranger") == ("stranger" in node.specs.claims()), "files of no claim are removed"
    assert step > 10
