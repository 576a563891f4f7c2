"""Prepare on the durable ledger: the same answers, and an agent that is killed for good keeps its word."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_agent.errors import PermanentError, RetryableError
from dra_agent.prepare.ledger import DeviceHeldError, HeldDevice, JournalLedger, LedgerEntry
from prepare.simulated_world import World, claim, partition, result

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def durable(world: World, tmp_path: Path) -> Iterator[World]:
    with JournalLedger(tmp_path / "state", "boot-1") as ledger:
        world.ledger = ledger
        world.start()
        yield world


def reopen(world: World, tmp_path: Path, boot: str = "boot-1") -> JournalLedger:
    world.ledger.close()
    ledger = JournalLedger(tmp_path / "state", boot)
    world.ledger = ledger
    world.start()
    return ledger


def test_a_claim_survives_the_agent_and_a_reboot(durable: World, tmp_path: Path) -> None:
    wanted = claim("a", result("gpu-0", "gpu/h100", consumedCapacity={"memory": "1Gi"}, shareID="s1"))
    answer = durable.preparer.prepare(wanted)
    for boot in ("boot-1", "boot-2"):
        with reopen(durable, tmp_path, boot):
            durable.specs.file("a").unlink()
            assert durable.preparer.recover().rebuilt == ("a",)
            assert durable.usable("a") and durable.preparer.prepare(wanted) == answer


def test_the_ledger_refuses_a_second_holder_and_names_the_first(durable: World) -> None:
    durable.preparer.prepare(claim("a", "gpu-0"))
    with pytest.raises(DeviceHeldError, match=r"gpu-0.*default/claim-a"):
        durable.preparer.prepare(claim("b", "gpu-0"))
    durable.preparer.prepare(claim("admin", result("gpu-0", adminAccess=True)))
    durable.preparer.unprepare("a")
    assert durable.preparer.prepare(claim("b", "gpu-0"))


def test_a_claim_of_another_node_s_pool_is_refused(durable: World) -> None:
    """Names of devices come from their PCI addresses: every node of one model has the same."""
    with pytest.raises(PermanentError, match=r"gpu-0 of pool node-b/gpu .*node-a/gpu"):
        durable.preparer.prepare(claim("a", result("gpu-0", pool="node-b/gpu")))
    assert durable.ledger.entries() == []


def test_a_device_that_is_held_under_the_node_s_former_name_is_refused(durable: World) -> None:
    durable.ledger.start(
        LedgerEntry("old", "default", "old", (HeldDevice("former/gpu", "gpu-0", "gpus"),)), durable=True
    )
    durable.ledger.complete("old", {})
    with pytest.raises(DeviceHeldError, match=r"gpu-0.*default/old"):
        durable.preparer.prepare(claim("new", "gpu-0"))


def test_a_claim_may_hold_a_device_and_watch_it(durable: World) -> None:
    watched = claim("a", result("gpu-0", "work"), result("gpu-0", "watch", adminAccess=True))
    (device,) = durable.preparer.prepare(watched)
    assert device.requests == ("work", "watch")
    with pytest.raises(DeviceHeldError):
        durable.preparer.prepare(claim("b", "gpu-0"))


def test_a_set_up_begun_before_a_crash_is_undone_after_it(durable: World, tmp_path: Path) -> None:
    from prepare.simulated_world import Crash

    durable.points.arm(1)  # after the second partition is made
    with pytest.raises(Crash):
        durable.preparer.prepare(claim("a", "gpu-0", "gpu-1", config=[partition(2)]))
    assert set(durable.hardware) == {"gpu-0", "gpu-1"}
    durable.points.arm(None)
    with reopen(durable, tmp_path):
        assert durable.preparer.recover().rolled_back == ("a",)
        assert durable.hardware == {} and durable.ledger.entries() == []


def test_a_state_directory_that_cannot_be_written_is_said(world: World, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the directory should be")
    with pytest.raises(RetryableError, match="state"):
        JournalLedger(tmp_path / "state", "boot-1")


def test_a_killed_agent_keeps_its_word(tmp_path: Path) -> None:
    """SIGKILL at any moment, ten times over: what was answered as prepared still is, what was released is free."""
    chance = random.Random(7)
    promised: dict[str, str] = {}
    answers = 0
    for _ in range(10):
        agent = subprocess.Popen(
            [sys.executable, str(TESTS / "prepare" / "killed_agent.py"), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            bufsize=0,  # communicate() does not see what readline() read ahead
        )
        assert agent.stdout is not None and agent.stderr is not None
        assert agent.stdout.readline() == b"ready\n", agent.stderr.read().decode()
        said = [agent.stdout.readline().decode().strip() for _ in range(chance.randrange(12))]
        time.sleep(chance.uniform(0, 0.01))
        agent.send_signal(signal.SIGKILL)
        said += agent.communicate()[0].decode().splitlines()
        being_released: str | None = None
        answers += len(said)
        for line in said:
            kind, uid, *device = line.split()
            if kind == "+":
                promised[uid] = device[0]
            elif kind == "-":
                del promised[uid]
            being_released = uid if kind == "?" else None
        world = World(tmp_path)
        with JournalLedger(tmp_path / "state", "boot-1") as ledger:
            world.ledger = ledger
            world.start()
            assert world.preparer.recover().problems == ()
            held = {entry.uid: entry.devices[0].device for entry in ledger.entries()}
            lost = promised.keys() - held.keys() - {being_released}
            assert not lost, f"answered as prepared and lost: {lost}"
            assert len(set(held.values())) == len(held), f"held twice: {held}"
            extra = held.keys() - promised.keys()
            assert len(extra) <= 1, f"at most the claim in work may be held without an answer: {extra}"
            assert world.specs.claims().keys() == held.keys()
            assert all(world.usable(uid) for uid in held)
            promised = held
    assert answers, "the agent never got anywhere"


def test_a_watcher_that_raises_does_not_fail_a_durable_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    changes: list[str] = []

    def broken() -> None:
        raise ValueError("a defect")

    with JournalLedger(tmp_path, "boot") as ledger:
        ledger.watch(broken)
        ledger.watch(lambda: changes.append("changed"))
        ledger.start(LedgerEntry("a", "ns", "a", ()), durable=True)
        ledger.complete("a", {})
        assert ledger.release("a")
    assert changes == ["changed"] * 3
    assert sum("a watcher of the ledger failed" in record.message for record in caplog.records) == 3
