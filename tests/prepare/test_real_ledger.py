"""Prepare with the durable ledger: the same results, also after SIGKILL."""

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
from prepare.simulated_node import SimulatedNode, claim, partition, result

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def durable(node: SimulatedNode, tmp_path: Path) -> Iterator[SimulatedNode]:
    with JournalLedger(tmp_path / "state", "boot-1") as ledger:
        node.ledger = ledger
        node.start()
        yield node


def reopen(node: SimulatedNode, tmp_path: Path, boot: str = "boot-1") -> JournalLedger:
    node.ledger.close()
    ledger = JournalLedger(tmp_path / "state", boot)
    node.ledger = ledger
    node.start()
    return ledger


def test_a_claim_survives_a_restart_and_a_reboot(durable: SimulatedNode, tmp_path: Path) -> None:
    claim_ = claim("a", result("gpu-0", "gpu/h100", consumedCapacity={"memory": "1Gi"}, shareID="s1"))
    prepared = durable.preparer.prepare(claim_)
    for boot in ("boot-1", "boot-2"):
        with reopen(durable, tmp_path, boot):
            durable.specs.file("a").unlink()
            assert durable.preparer.recovery.recover().rebuilt == ("a",)
            assert durable.usable("a") and durable.preparer.prepare(claim_) == prepared


def test_a_claim_keeps_the_time_of_its_first_record(durable: SimulatedNode, tmp_path: Path) -> None:
    durable.preparer.prepare(claim("a", "gpu-0"))
    (entry,) = durable.ledger.entries()
    assert entry.started_at is not None and entry.state == "completed"
    with reopen(durable, tmp_path, "boot-2"):
        durable.preparer.prepare(claim("a", "gpu-0"))
        assert [one.started_at for one in durable.ledger.entries()] == [entry.started_at]


def test_a_held_device_is_refused_with_the_name_of_its_holder(durable: SimulatedNode) -> None:
    durable.preparer.prepare(claim("a", "gpu-0"))
    with pytest.raises(DeviceHeldError, match=r"gpu-0.*default/claim-a"):
        durable.preparer.prepare(claim("b", "gpu-0"))
    durable.preparer.prepare(claim("admin", result("gpu-0", adminAccess=True)))
    durable.preparer.unprepare("a")
    assert durable.preparer.prepare(claim("b", "gpu-0"))


def test_a_claim_with_a_pool_of_another_node_is_refused(durable: SimulatedNode) -> None:
    """Device names derive from PCI addresses: all nodes of one model have the same names."""
    with pytest.raises(PermanentError, match=r"gpu-0 of pool node-b/gpu .*node-a/gpu"):
        durable.preparer.prepare(claim("a", result("gpu-0", pool="node-b/gpu")))
    assert durable.ledger.entries() == []


def test_a_device_held_under_a_former_node_name_is_refused(durable: SimulatedNode) -> None:
    durable.ledger.start(
        LedgerEntry("old", "default", "old", (HeldDevice("former/gpu", "gpu-0", "gpus"),)), durable=True
    )
    durable.ledger.complete("old", {})
    with pytest.raises(DeviceHeldError, match=r"gpu-0.*default/old"):
        durable.preparer.prepare(claim("new", "gpu-0"))


def test_a_device_held_in_a_pool_of_another_group_is_refused(durable: SimulatedNode) -> None:
    """Pools can be split by product while claims hold devices."""
    assert durable.preparer.prepare(claim("old", result("gpu-0", pool="node-a/l40s/gpu")))
    with pytest.raises(DeviceHeldError, match=r"gpu-0.*default/claim-old"):
        durable.preparer.prepare(claim("new", "gpu-0"))
    with pytest.raises(PermanentError, match=r"node-b/l40s/gpu .*node-a/gpu"):
        durable.preparer.prepare(claim("other", result("gpu-1", pool="node-b/l40s/gpu")))


def test_a_claim_may_have_admin_access_to_a_device_that_it_holds(durable: SimulatedNode) -> None:
    claim_with_both = claim("a", result("gpu-0", "work"), result("gpu-0", "watch", adminAccess=True))
    (device,) = durable.preparer.prepare(claim_with_both)
    assert device.requests == ("work", "watch")
    with pytest.raises(DeviceHeldError):
        durable.preparer.prepare(claim("b", "gpu-0"))


def test_an_unfinished_setup_is_undone_after_a_crash(durable: SimulatedNode, tmp_path: Path) -> None:
    from prepare.simulated_node import Crash

    durable.points.arm(1)  # after the second partition is made
    with pytest.raises(Crash):
        durable.preparer.prepare(claim("a", "gpu-0", "gpu-1", config=[partition(2)]))
    assert set(durable.hardware) == {"gpu-0", "gpu-1"}
    durable.points.arm(None)
    with reopen(durable, tmp_path):
        assert durable.preparer.recovery.recover().rolled_back == ("a",)
        assert durable.hardware == {} and durable.ledger.entries() == []


def test_an_unusable_state_directory_is_reported(node: SimulatedNode, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the directory should be")
    with pytest.raises(RetryableError, match="state"):
        JournalLedger(tmp_path / "state", "boot-1")


def test_sigkill_at_any_moment_keeps_prepared_claims(tmp_path: Path) -> None:
    """After SIGKILL at ten random moments, prepared claims are still prepared and released devices are free."""
    rng = random.Random(7)
    expected: dict[str, str] = {}
    prepared_results = 0
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
        lines = [agent.stdout.readline().decode().strip() for _ in range(rng.randrange(12))]
        time.sleep(rng.uniform(0, 0.01))
        agent.send_signal(signal.SIGKILL)
        lines += agent.communicate()[0].decode().splitlines()
        releasing: str | None = None
        prepared_results += len(lines)
        for line in lines:
            kind, uid, *device = line.split()
            if kind == "+":
                expected[uid] = device[0]
            elif kind == "-":
                del expected[uid]
            releasing = uid if kind == "?" else None
        node = SimulatedNode(tmp_path)
        with JournalLedger(tmp_path / "state", "boot-1") as ledger:
            node.ledger = ledger
            node.start()
            assert node.preparer.recovery.recover().problems == ()
            held = {entry.uid: entry.devices[0].device for entry in ledger.entries()}
            lost = expected.keys() - held.keys() - {releasing}
            assert not lost, f"returned as prepared and lost: {lost}"
            assert len(set(held.values())) == len(held), f"held twice: {held}"
            extra = held.keys() - expected.keys()
            assert len(extra) <= 1, f"at most the claim of the last call may be held without a result: {extra}"
            assert node.specs.claims().keys() == held.keys()
            assert all(node.usable(uid) for uid in held)
            expected = held
    assert prepared_results, "the agent completed no call"


def test_a_failing_watcher_does_not_fail_a_durable_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    changes: list[str] = []

    def fail() -> None:
        raise ValueError("a defect")

    with JournalLedger(tmp_path, "boot") as ledger:
        ledger.watch(fail)
        ledger.watch(lambda: changes.append("changed"))
        ledger.start(LedgerEntry("a", "ns", "a", ()), durable=True)
        ledger.complete("a", {})
        assert ledger.release("a")
    assert changes == ["changed"] * 3
    assert sum("a watcher of the ledger failed" in record.message for record in caplog.records) == 3
