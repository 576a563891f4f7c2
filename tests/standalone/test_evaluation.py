"""A claim whose evaluation ends the process three times in a row is not evaluated again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent.standalone.allocator import ClusterAllocator
from dra_agent.standalone.queue import ClaimQueue
from dra_agent.standalone.store import Store

CRASHING_AGENT = """
import os, sys, time
from pathlib import Path
import msgspec
from dra_agent.standalone.queue import ClaimQueue
from dra_agent.standalone.store import Store

class Allocator:
    def allocate(self, *, claims, **question):
        if claims[0]["metadata"]["name"] == "deadly":
            os._exit(134)
        return {"allocated": False, "error": ""}

queue = ClaimQueue(
    Store(Path(sys.argv[1])), node="n", slices=list, allocator=Allocator(), preparer=None, clock=time.monotonic
)
queue.apply(msgspec.json.decode(sys.stdin.buffer.read()))
queue.reconcile()
"""


GPU = {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
INTERRUPTED = "the agent ended while it evaluated this claim"


def crash(directory: Path, objects: Sequence[Any] = (), *, times: int = 1) -> None:
    """Run processes that end while they evaluate the first claim named "deadly"; the objects are applied first."""
    command = [sys.executable, "-c", CRASHING_AGENT, str(directory)]
    for _ in range(times):
        process = subprocess.run(command, input=msgspec.json.encode(objects), timeout=60, check=False)
        assert process.returncode == 134
        objects = ()


class Run:
    """A process that ends after all claims were evaluated."""

    def __init__(self, directory: Path, preparer: Any, devices: Any, clock: Any) -> None:
        self.evaluated: list[str] = []
        evaluated = self.evaluated

        class RecordingAllocator(ClusterAllocator):
            def allocate(self, **question: Any) -> dict[str, Any]:
                evaluated.append(question["claims"][0]["metadata"]["name"])
                answer: dict[str, Any] = devices.allocate(**question)
                return answer

        self.store = Store(directory)
        self.queue = ClaimQueue(
            self.store, node="n", slices=list, allocator=RecordingAllocator(), preparer=preparer, clock=clock
        )
        self.queue.reconcile()

    def phases(self) -> dict[str, str]:
        return {view.name: view.phase for view in self.queue.views()}

    def close(self) -> None:
        self.queue.stop()
        self.store.close()


@pytest.fixture
def run(tmp_path: Path, preparer: Any, devices: Any, clock: Any) -> Iterator[Callable[[], Run]]:
    runs: list[Run] = []

    def start() -> Run:
        runs.append(Run(tmp_path, preparer, devices, clock))
        return runs[-1]

    yield start
    for one in runs:
        one.close()


def test_a_claim_fails_if_it_ends_three_processes_in_a_row_and_no_other_does(
    tmp_path: Path, claim: Any, run: Callable[[], Run]
) -> None:
    crash(tmp_path, [GPU, claim("deadly"), claim("twin"), claim("other", 5)], times=3)
    last = run()
    assert "deadly" not in last.evaluated
    views = {view.name: view for view in last.queue.views()}
    assert (views["deadly"].phase, views["twin"].phase, views["other"].phase) == ("Failed", "Prepared", "Pending")
    assert INTERRUPTED in views["deadly"].message
    last.queue.delete("default", "twin")
    last.queue.reconcile()
    assert [result.action for result in last.queue.apply([claim("deadly")])] == ["configured"]
    last.queue.reconcile()
    assert last.phases() == {"deadly": "Prepared", "other": "Pending"}


@pytest.mark.parametrize("times", [1, 2])
def test_a_process_that_is_killed_fails_no_claim(
    tmp_path: Path, claim: Any, run: Callable[[], Run], times: int
) -> None:
    crash(tmp_path, [GPU, claim("deadly"), claim("twin", 5)], times=times)
    assert run().phases() == {"deadly": "Prepared", "twin": "Pending"}


def test_strikes_are_kept_while_others_are_evaluated(tmp_path: Path, claim: Any, run: Callable[[], Run]) -> None:
    crash(tmp_path, [GPU, claim("older", 5), claim("older-2", 6), claim("deadly")], times=3)
    last = run()
    assert last.phases() == {"older": "Pending", "older-2": "Pending", "deadly": "Failed"}


def test_an_evaluation_that_succeeds_resets_the_strikes(tmp_path: Path, claim: Any, run: Callable[[], Run]) -> None:
    crash(tmp_path, [GPU, claim("deadly", 5)], times=2)
    survivor = run()
    assert survivor.phases() == {"deadly": "Pending"}
    survivor.close()
    crash(tmp_path, times=2)
    assert run().phases() == {"deadly": "Pending"}


def test_a_damaged_file_of_strikes_has_none(tmp_path: Path, claim: Any, run: Callable[[], Run]) -> None:
    crash(tmp_path, [GPU, claim("deadly", 5)])
    for path in tmp_path.glob("evaluation-strikes*"):
        path.write_bytes(b"\xff")
    assert run().phases() == {"deadly": "Pending"}


def test_a_process_that_ends_between_evaluations_parks_no_claim(
    tmp_path: Path, preparer: Any, devices: Any, claim: Any, clock: Any
) -> None:
    for _ in range(2):
        store = Store(tmp_path)
        queue = ClaimQueue(store, node="n", slices=list, allocator=devices, preparer=preparer, clock=clock)
        queue.apply([GPU, claim("waits", 3)])
        queue.reconcile()
        assert [view.phase for view in queue.views()] == ["Pending"]
        store.close()
