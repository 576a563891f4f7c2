"""Repair claim by claim, what is in the way of another, configuration that is named, and the phases of a prepare."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.prepare import Preparer, allocation, record
from dra_agent.prepare.config import ConfigurationError, decode
from dra_agent.prepare.ledger import HeldDevice, LedgerEntry
from dra_agent.prepare.locks import KeyedLocks, LockedError
from dra_agent.prepare.recovery import REPAIR_TIMEOUT_S, ExecutorRunner, RecoveryReport, repair_all, undo_abandoned
from eventually import DEADLINE_S
from prepare.simulated_world import DRIVER, POOL, MemoryLedger, Partitions, Points, World, claim, partition


def entry(uid: str, *devices: str) -> LedgerEntry:
    return LedgerEntry(uid, "default", f"claim-{uid}", tuple(HeldDevice(POOL, name, "gpus") for name in devices))


def test_each_claim_is_repaired_apart_whatever_becomes_of_the_one_before() -> None:
    def mend(uid: str) -> bool | None:
        match uid:
            case "locked":
                raise LockedError("is in work")
            case "sick":
                raise RetryableError("does not answer")
            case "bug":
                raise ZeroDivisionError("x")
        return {"changed": True, "whole": False, "begun": None}[uid]

    report = repair_all([entry(uid) for uid in ("locked", "sick", "bug", "changed", "whole", "begun")], mend)
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


def test_a_repair_that_was_given_up_before_it_began_never_begins() -> None:
    began, gate, made = threading.Event(), threading.Event(), []
    executor = DaemonExecutor(1, "test")

    def hang() -> None:
        began.set()
        gate.wait(DEADLINE_S)

    executor.submit(hang)
    assert began.wait(DEADLINE_S)
    with pytest.raises(RetryableError, match="repair of b has not ended within 0 s"):
        ExecutorRunner(executor, 0.05)("repair of b", lambda: made.append("b"))
    gate.set()
    assert ExecutorRunner(executor, DEADLINE_S)("repair of c", lambda: "c") == "c"
    assert made == []


class LateFuture(Future[Any]):
    """Ends in the moment at which it is given up."""

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.set_result("late")
            raise TimeoutError
        return super().result(timeout)


class LateExecutor(Executor):
    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        return LateFuture()


def test_a_repair_that_ends_in_the_moment_at_which_it_is_given_up_has_ended() -> None:
    assert ExecutorRunner(LateExecutor(), DEADLINE_S)("repair of a", lambda: "late") == "late"


def test_a_round_of_repairs_has_an_end() -> None:
    assert ExecutorRunner(DaemonExecutor(1, "test"))._timeout_s == REPAIR_TIMEOUT_S
    assert 0 < REPAIR_TIMEOUT_S < 60


def test_a_timeout_of_the_call_itself_is_the_calls_own() -> None:
    def fail() -> None:
        raise TimeoutError("of the driver")

    with pytest.raises(TimeoutError, match="of the driver"):
        ExecutorRunner(DaemonExecutor(1, "test"), DEADLINE_S)("repair", fail)


def test_an_abandoned_claim_that_cannot_be_undone_does_not_end_the_search() -> None:
    ledger = MemoryLedger(Points(), {})
    for one in (entry("a", "gpu-0"), entry("b", "gpu-1"), entry("elsewhere", "gpu-7")):
        ledger.start(one, durable=True)
    undone = []

    def undo(other: LedgerEntry) -> None:
        if other.uid == "a":
            raise RetryableError("the driver does not answer")
        undone.append(other.uid)

    wanted = entry("wanted", "gpu-0", "gpu-1")
    assert undo_abandoned(wanted, ledger, KeyedLocks(), KeyedLocks(), undo, Deadline.of(DEADLINE_S))
    assert undone == ["b"]
    undone.clear()
    claims = KeyedLocks()
    with claims.hold(["b"], Deadline.of(0)):
        assert not undo_abandoned(wanted, ledger, claims, KeyedLocks(), undo, Deadline.of(DEADLINE_S))
    assert undone == [], "what somebody works at is not abandoned"


def test_configuration_that_is_wrong_is_named_with_its_claim_and_field(world: World) -> None:
    wrong = partition()
    del wrong["opaque"]["parameters"]["size"]
    with pytest.raises(ConfigurationError) as missing:
        world.preparer.prepare(claim("a", "gpu-0", config=[wrong]))
    assert str(missing.value) == (
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


def test_a_claim_without_configuration_or_pod_says_so() -> None:
    read = allocation.read(claim("a", "gpu-0"), DRIVER)
    assert record.digest(read) == "" and read.pod_claim_name is None
    (device,) = read.devices
    assert not device.admin_access and device.share_id is None


def test_how_long_each_phase_took_is_told(world: World) -> None:
    took: list[tuple[str, float]] = []
    preparer = Preparer(
        DRIVER,
        world.ledger,
        world.specs,
        world.lookup,
        node="node-a",
        edit_providers=world.preparer._edit_providers,
        setups=[world.partitions],
        observe_phase=lambda phase, seconds: took.append((phase, seconds)),
    )
    began = time.perf_counter()
    preparer.prepare(claim("plain", "gpu-0"))
    preparer.prepare(claim("parted", "gpu-1", config=[partition()]))
    spent = time.perf_counter() - began
    assert [phase for phase, _ in took] == ["lock", "ledger", "cdi", "lock", "ledger", "setup", "ledger", "cdi"]
    assert all(0 <= seconds <= spent for _, seconds in took)
