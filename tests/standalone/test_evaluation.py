"""A claim whose evaluation ends the process is not evaluated at the next start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

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
    def allocate(self, **question):
        os._exit(134)

queue = ClaimQueue(
    Store(Path(sys.argv[1])), node="n", slices=list, allocator=Allocator(), preparer=None, clock=time.monotonic
)
queue.apply(msgspec.json.decode(sys.stdin.buffer.read()))
queue.reconcile()
"""


def crash(directory: Path, objects: list[Any]) -> None:
    """Run a process that ends while it evaluates the first claim."""
    command = [sys.executable, "-c", CRASHING_AGENT, str(directory)]
    process = subprocess.run(command, input=msgspec.json.encode(objects), timeout=60, check=False)
    assert process.returncode == 134


def test_a_claim_that_ended_the_process_waits_for_another_apply(
    tmp_path: Path, preparer: Any, devices: Any, claim: Any, clock: Any
) -> None:
    gpu = {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
    crash(tmp_path, [gpu, claim("deadly"), claim("twin"), claim("other", 2)])
    evaluated: list[str] = []

    class RecordingAllocator(ClusterAllocator):
        def allocate(self, **question: Any) -> dict[str, Any]:
            evaluated.append(question["claims"][0]["metadata"]["name"])
            answer: dict[str, Any] = devices.allocate(**question)
            return answer

    store = Store(tmp_path)
    queue = ClaimQueue(store, node="n", slices=list, allocator=RecordingAllocator(), preparer=preparer, clock=clock)
    queue.reconcile()
    assert evaluated == ["other"]
    views = {view.name: view for view in queue.views()}
    assert views["other"].phase == "Prepared"
    for name in ("deadly", "twin"):
        assert views[name].phase == "Failed"
        assert "the agent ended while it evaluated this claim" in views[name].message
    queue.delete("default", "other")
    queue.reconcile()
    assert [result.action for result in queue.apply([claim("deadly")])] == ["configured"]
    queue.reconcile()
    assert {view.name: view.phase for view in queue.views()} == {"deadly": "Prepared", "twin": "Failed"}
    store.close()


def test_a_process_that_ends_between_evaluations_parks_no_claim(
    tmp_path: Path, preparer: Any, devices: Any, claim: Any, clock: Any
) -> None:
    gpu = {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
    for _ in range(2):
        store = Store(tmp_path)
        queue = ClaimQueue(store, node="n", slices=list, allocator=devices, preparer=preparer, clock=clock)
        queue.apply([gpu, claim("waits", 3)])
        queue.reconcile()
        assert [view.phase for view in queue.views()] == ["Pending"]
        store.close()
