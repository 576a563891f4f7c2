"""Two agents on one state directory, as in a rolling update: one truth, whichever is asked, and whoever dies."""

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
from prepare.simulated_world import Crash, World, claim, partition

TESTS = Path(__file__).resolve().parents[1]


def sharing(root: Path, name: str) -> World:
    world = World(root)
    world.ledger = JournalLedger(root / "state", "boot-1", shared_as=name)
    world.locks = KeyedLocks(root / "state" / "locks", process=name)
    world.start()
    return world


def test_a_claim_is_prepared_by_one_and_unprepared_by_the_other(tmp_path: Path) -> None:
    old, new = sharing(tmp_path, "old"), sharing(tmp_path, "new")
    answer = old.preparer.prepare(claim("a", "gpu-0"))
    assert new.preparer.prepare(claim("a", "gpu-0")) == answer
    with pytest.raises(DeviceHeldError, match="claim-a"):
        new.preparer.prepare(claim("b", "gpu-0"))
    assert new.preparer.unprepare("a") and not old.preparer.unprepare("a")
    assert old.preparer.prepare(claim("b", "gpu-0")) and old.specs.claims().keys() == {"b"}


def test_what_a_dead_agent_left_half_done_is_undone_by_who_wants_its_device_and_by_a_repair(tmp_path: Path) -> None:
    old, new = sharing(tmp_path, "old"), sharing(tmp_path, "new")
    new.partitions.hardware = old.hardware
    kept = new.preparer.prepare(claim("kept", "gpu-2"))
    for uid, gpu in (("a", "gpu-0"), ("b", "gpu-1")):
        old.points.arm(0)  # after the partition is made
        # The dead undo nothing.
        old.ledger.release = lambda uid: True  # type: ignore[method-assign]
        with pytest.raises(Crash):
            old.preparer.prepare(claim(uid, gpu, config=[partition(2)]))
    old.points.arm(None)
    old.specs.write("stranger", b"{}")
    old.ledger._native.close()
    assert set(old.hardware) == {"gpu-0", "gpu-1"}
    # Who wants the device next gets it; the other claim is nobody's business until a repair.
    assert new.preparer.prepare(claim("c", "gpu-0"))
    assert set(old.hardware) == {"gpu-1"}
    report = new.preparer.recover()
    assert report.rolled_back == ("b",) and report.removed == ("stranger",)
    assert old.hardware == {} and new.specs.claims().keys() == {"kept", "c"}
    assert new.preparer.prepare(claim("kept", "gpu-2")) == kept


def test_an_agent_that_keeps_its_turn_is_named(tmp_path: Path) -> None:
    old, new = sharing(tmp_path, "old-pod"), sharing(tmp_path, "new-pod")
    with (
        old.ledger.lease(),
        pytest.raises(RetryableError, match=rf"pid {os.getpid()}, old-pod"),
    ):
        new.preparer.prepare(claim("a", "gpu-0"), Deadline.of(0.05))
    assert new.preparer.prepare(claim("a", "gpu-0"))
    assert ledger_lease.ACQUIRE_TIMEOUT_S < 45, "the kubelet gives up after 45 s"


class Agents:
    """Two agents that are killed and come back, and someone who asks them as the kubelet does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.waiting: dict[tuple[int, int], queue.Queue[str | None]] = {}
        self.numbers = iter(range(1, 1 << 30))
        self.lock = threading.Lock()
        self.writing = (threading.Lock(), threading.Lock())
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
                number, _, answer = line.strip().partition(" ")
                if int(number):
                    self.waiting[process.pid, int(number)].put(answer)
                else:
                    self.ready.add(process.pid)
        with self.lock:
            for (pid, _), waiting in self.waiting.items():
                if pid == process.pid:
                    waiting.put(None)

    def ask(self, slot: int, *words: str) -> str | None:
        """Answer, or None where the agent died meanwhile."""
        with self.lock:
            process, number = self.processes[slot], next(self.numbers)
            answer = self.waiting[process.pid, number] = queue.Queue()
            if process.poll() is not None:
                return None
        try:
            assert process.stdin is not None
            with self.writing[slot]:
                process.stdin.write(" ".join((str(number), *words)) + "\n")
                process.stdin.flush()
        except (OSError, ValueError):  # dead, or closed because it is dead
            return None
        return answer.get(timeout=120)

    def kill(self, slot: int) -> None:
        with self.lock:
            process = self.processes[slot]
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.kills += 1
        assert process.stdin is not None
        with suppress(OSError):  # what was on its way to the dead
            process.stdin.close()
        fresh = self.start(slot)
        with self.lock:
            self.processes[slot] = fresh

    def stop(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=120)


def test_two_agents_under_load_and_sigkill_have_one_truth(tmp_path: Path) -> None:
    agents = Agents(tmp_path)
    held: dict[str, str] = {}  # device: uid, as the kubelet was answered
    guards = {f"gpu-{number}": threading.Lock() for number in range(6)}
    over = time.monotonic() + 10 * DEADLINE_S
    answers = dict.fromkeys(("prepared", "released", "refused", "died"), 0)

    def enough() -> bool:
        return (agents.kills >= 12 and min(answers.values()) > 12) or time.monotonic() > over

    def insist(chance: random.Random, *words: str) -> str:
        while True:
            answer = agents.ask(chance.randrange(2), *words)
            if answer is not None:
                return answer
            answers["died"] += 1
            time.sleep(0.01)

    def kubelet(number: int) -> None:
        chance = random.Random(number)
        for turn in range(1 << 30):
            if enough():
                return
            device = chance.choice(sorted(guards))
            with guards[device]:
                uid = held.get(device)
                if uid is None:
                    uid = f"{number}-{turn}"
                    assert insist(chance, "prepare", uid, device) == device
                    held[device] = uid
                    answers["prepared"] += 1
                elif chance.random() < 0.4:
                    assert insist(chance, "prepare", f"thief-{number}-{turn}", device) == "held"
                    answers["refused"] += 1
                elif chance.random() < 0.3:
                    assert insist(chance, "prepare", uid, device) == device
                else:
                    # False where the agent that died had released it already.
                    assert insist(chance, "unprepare", uid) in ("released True", "released False")
                    del held[device]
                    answers["released"] += 1
            if chance.random() < 0.05:
                assert insist(chance, "compact") == "compacted"

    def killer() -> None:
        chance = random.Random(99)
        while not enough():
            slot = chance.randrange(2)
            # One that only ever starts does nothing to be killed in.
            while agents.processes[slot].pid not in agents.ready and not enough():
                time.sleep(0.01)
            time.sleep(chance.uniform(0.05, 0.6))
            agents.kill(slot)

    try:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(killer), *(pool.submit(kubelet, number) for number in range(3))]:
                done.result()
    finally:
        agents.stop()
    assert agents.kills >= 5 and min(answers.values()) > 5, (agents.kills, answers)
    with JournalLedger(tmp_path / "state", "boot-1") as ledger:
        world = World(tmp_path)
        world.ledger = ledger
        world.start()
        # What was killed last may have begun a claim or a file; nobody came after it.
        assert world.preparer.recover().problems == ()
        entries = ledger.entries()
        assert {entry.devices[0].device: entry.uid for entry in entries} == held
        assert all(entry.state == "completed" for entry in entries) and len(entries) == len(held)
        assert ledger.report.problems() == []
    assert world.specs.claims().keys() == set(held.values()) and not list(world.cdi.glob(".*"))
