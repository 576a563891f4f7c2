"""Two agents on one state directory, as in a rolling update: they agree, if either is called or killed."""

from __future__ import annotations

import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.prepare import ledger_lease
from dra_agent.prepare.ledger import DeviceHeldError, JournalLedger
from dra_agent.prepare.locks import KeyedLocks
from eventually import DEADLINE_S
from prepare.simulated_node import Crash, SimulatedNode, claim, partition

TESTS = Path(__file__).resolve().parents[1]


def sharing_node(root: Path, name: str) -> SimulatedNode:
    node = SimulatedNode(root)
    node.ledger = JournalLedger(root / "state", "boot-1", shared_as=name)
    node.locks = KeyedLocks(root / "state" / "locks", process=name)
    node.start()
    return node


def test_a_claim_prepared_by_one_agent_is_unprepared_by_the_other(tmp_path: Path) -> None:
    old, new = sharing_node(tmp_path, "old"), sharing_node(tmp_path, "new")
    response = old.preparer.prepare(claim("a", "gpu-0"))
    assert new.preparer.prepare(claim("a", "gpu-0")) == response
    with pytest.raises(DeviceHeldError, match="claim-a"):
        new.preparer.prepare(claim("b", "gpu-0"))
    assert new.preparer.unprepare("a") and not old.preparer.unprepare("a")
    assert old.preparer.prepare(claim("b", "gpu-0")) and old.specs.claims().keys() == {"b"}


def test_an_unfinished_claim_of_a_dead_agent_is_undone(tmp_path: Path) -> None:
    old, new = sharing_node(tmp_path, "old"), sharing_node(tmp_path, "new")
    new.partitions.hardware = old.hardware
    kept = new.preparer.prepare(claim("kept", "gpu-2"))
    for uid, device in (("a", "gpu-0"), ("b", "gpu-1")):
        old.points.arm(0)  # after the partition is made
        # A dead agent undoes nothing.
        old.ledger.release = lambda uid: True  # type: ignore[method-assign]
        with pytest.raises(Crash):
            old.preparer.prepare(claim(uid, device, config=[partition(2)]))
    old.points.arm(None)
    old.specs.write("stranger", b"{}")
    old.ledger.close()
    assert set(old.hardware) == {"gpu-0", "gpu-1"}
    # The next claim for the device gets it; the other unfinished claim waits for a repair.
    assert new.preparer.prepare(claim("c", "gpu-0"))
    assert set(old.hardware) == {"gpu-1"}
    report = new.preparer.recovery.recover()
    assert report.rolled_back == ("b",) and report.removed == ("stranger",)
    assert old.hardware == {} and new.specs.claims().keys() == {"kept", "c"}
    assert new.preparer.prepare(claim("kept", "gpu-2")) == kept


def test_an_agent_that_keeps_its_lease_is_named(tmp_path: Path) -> None:
    old, new = sharing_node(tmp_path, "old-pod"), sharing_node(tmp_path, "new-pod")
    with (
        old.ledger.lease(),
        pytest.raises(RetryableError, match=rf"pid {os.getpid()}, old-pod"),
    ):
        new.preparer.prepare(claim("a", "gpu-0"), Deadline.of(0.05))
    assert new.preparer.prepare(claim("a", "gpu-0"))
    assert ledger_lease.ACQUIRE_TIMEOUT_S < 45, "the kubelet times out after 45 s"


class Agents:
    """Two agents that are killed and restarted, and calls to them as the kubelet makes them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.waiting: dict[tuple[int, int], queue.Queue[str | None]] = {}
        self.numbers = iter(range(1, 1 << 30))
        self.lock = threading.Lock()
        self.write_locks = (threading.Lock(), threading.Lock())
        self.ready: set[int] = set()
        self.processes = [self.start(slot) for slot in (0, 1)]
        self.kills = 0

    def start(self, slot: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(TESTS / "prepare" / "sharing_agent.py"), str(self.root), f"agent-{slot}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            text=True,
        )
        threading.Thread(target=self.listen, args=(process,), daemon=True).start()
        return process

    def listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                number, _, response = line.strip().partition(" ")
                if int(number):
                    self.waiting[process.pid, int(number)].put(response)
                else:
                    self.ready.add(process.pid)
        with self.lock:
            for (pid, _), waiting in self.waiting.items():
                if pid == process.pid:
                    waiting.put(None)

    def call(self, slot: int, *arguments: str) -> str | None:
        """Return the response, or None if the agent died meanwhile."""
        with self.lock:
            process, number = self.processes[slot], next(self.numbers)
            response = self.waiting[process.pid, number] = queue.Queue()
            if process.poll() is not None:
                return None
        try:
            assert process.stdin is not None
            with self.write_locks[slot]:
                process.stdin.write(" ".join((str(number), *arguments)) + "\n")
                process.stdin.flush()
        except (OSError, ValueError):  # the agent died, or its stdin was closed after its death
            return None
        return response.get(timeout=120)

    def kill(self, slot: int) -> None:
        with self.lock:
            process = self.processes[slot]
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.kills += 1
        assert process.stdin is not None
        with suppress(OSError):  # unsent output for the dead agent
            process.stdin.close()
        replacement = self.start(slot)
        with self.lock:
            self.processes[slot] = replacement

    def stop(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=120)


def test_two_agents_under_load_and_sigkill_agree(tmp_path: Path) -> None:
    agents = Agents(tmp_path)
    held: dict[str, str] = {}  # device: uid, as the kubelet recorded it
    guards = {f"gpu-{number}": threading.Lock() for number in range(6)}
    deadline = time.monotonic() + 10 * DEADLINE_S
    counters = dict.fromkeys(("prepared", "released", "refused", "died"), 0)

    def is_done() -> bool:
        return (agents.kills >= 12 and min(counters.values()) > 12) or time.monotonic() > deadline

    def call_until_answered(rng: random.Random, *arguments: str) -> str:
        while True:
            response = agents.call(rng.randrange(2), *arguments)
            if response is not None:
                return response
            counters["died"] += 1
            time.sleep(0.01)

    def kubelet(number: int) -> None:
        rng = random.Random(number)
        for round_number in range(1 << 30):
            if is_done():
                return
            device = rng.choice(sorted(guards))
            with guards[device]:
                uid = held.get(device)
                if uid is None:
                    uid = f"{number}-{round_number}"
                    assert call_until_answered(rng, "prepare", uid, device) == device
                    held[device] = uid
                    counters["prepared"] += 1
                elif rng.random() < 0.4:
                    assert call_until_answered(rng, "prepare", f"thief-{number}-{round_number}", device) == "held"
                    counters["refused"] += 1
                elif rng.random() < 0.3:
                    assert call_until_answered(rng, "prepare", uid, device) == device
                else:
                    # "False" if the agent that died had released it already.
                    assert call_until_answered(rng, "unprepare", uid) in ("released True", "released False")
                    del held[device]
                    counters["released"] += 1
            if rng.random() < 0.05:
                assert call_until_answered(rng, "compact") == "compacted"

    def killer() -> None:
        rng = random.Random(99)
        while not is_done():
            slot = rng.randrange(2)
            # Only an agent that is ready has work to interrupt.
            while agents.processes[slot].pid not in agents.ready and not is_done():
                time.sleep(0.01)
            time.sleep(rng.uniform(0.05, 0.6))
            agents.kill(slot)

    try:
        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(killer), *(pool.submit(kubelet, number) for number in range(3))]:
                future.result()
    finally:
        agents.stop()
    assert agents.kills >= 5 and min(counters.values()) > 5, (agents.kills, counters)
    with JournalLedger(tmp_path / "state", "boot-1") as ledger:
        node = SimulatedNode(tmp_path)
        node.ledger = ledger
        node.start()
        # The agent killed last may have left an unfinished claim or file.
        assert node.preparer.recovery.recover().problems == ()
        entries = ledger.entries()
        assert {entry.devices[0].device: entry.uid for entry in entries} == held
        assert all(entry.state == "completed" for entry in entries) and len(entries) == len(held)
        assert ledger.report.problems() == []
    assert node.specs.claims().keys() == set(held.values()) and not list(node.cdi.glob(".*"))


@pytest.mark.parametrize("shared", [False, True])
def test_only_a_shared_ledger_is_read_again_for_changes_of_other_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    node = sharing_node(tmp_path, "one") if shared else SimulatedNode(tmp_path)
    if not shared:
        node.ledger = JournalLedger(tmp_path / "state", "boot-1")
        node.start()
    reads: list[str] = []
    get = type(node.ledger).get

    def counted(ledger: JournalLedger, uid: str) -> object:
        reads.append(uid)
        return get(ledger, uid)

    response = node.preparer.prepare(claim("a", "gpu-0"))
    monkeypatch.setattr(type(node.ledger), "get", counted)
    assert node.preparer.prepare(claim("a", "gpu-0")) == response
    assert len(reads) == (2 if shared else 1)
    del reads[:]
    assert node.preparer.unprepare("a")
    assert len(reads) == (2 if shared else 1)
    assert node.ledger.entries() == []
