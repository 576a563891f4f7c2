"""Injects every fault once into every state-writing call of an agent, restarts the agent, and checks its guarantees.

    make faults-disk                       # every point, every fault
    make faults-disk ARGS='--every 20'     # a sample
    make faults-disk ARGS='--from 120'     # the rest of an interrupted run
    make faults-disk ARGS='--point 17 --fault ENOSPC'

A case: the agent starts with two prepared claims, prepares four more of different kinds, releases two, and stops. One
of its state-writing calls gets the fault. After that the disk works again, the agent is started, and `Node` checks.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import preloaded
from faults.disk import FAULTS, Fault, build
from faults.node import CLAIMS, CLASSES, HELD, BrokenPromiseError, Node
from faults.run import Selection, Termination, exit_code, run

BY_NAME = {fault.name: fault for fault in FAULTS}


class Campaign:
    """Runs cases on one node; creates a new one only if a case has left claims that cannot be released."""

    def __init__(self, folder: Path, library: Path, *, is_preloaded: bool = False) -> None:
        """`library` is the built interposer. If `is_preloaded`, this process has it in LD_PRELOAD for its children."""
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._library = library
        self._is_preloaded = is_preloaded
        self._nodes = 0
        self._node: Node | None = None
        self.calls: list[str] = []
        """The calls of a case without a fault, in order."""

    def close(self) -> None:
        if self._node is not None:
            self._node.close()
        self._node = None

    def rehearse(self) -> list[str]:
        """Run one case without a fault; return its state-writing calls, one "NAME PATH" each."""
        node = self._prepared_node()
        node.disk.watch()
        _run_workload(node)
        node.disk.repair()
        self.calls = node.disk.calls()
        _check(node)
        return self.calls

    def run(self, point: int, fault: Fault, before_check: Callable[[Node], None] | None = None) -> str:
        """Run one case; return the call that was hit, "" if none. Raises BrokenPromiseError."""
        try:
            node = self._prepared_node()
            node.disk.arm(point, fault)
            _run_workload(node)
            hit = next((line.removeprefix("HIT:") for line in node.disk.calls() if line.startswith("HIT:")), "")
            node.disk.repair()
            if before_check is not None:
                before_check(node)
            _check(node)
        except BaseException:
            self.close()
            raise
        return hit

    def case(self, point: int, fault: str) -> str:
        """Run one case; return the fault and the name of the call that was hit."""
        hit = self.run(point, BY_NAME[fault])
        return f"{fault} {hit.split()[0] if hit else 'not reached'}"

    def log(self) -> str:
        """Return the log of the last agent."""
        logs = sorted(self._folder.glob("node-*/log"), key=lambda path: path.stat().st_mtime)
        return logs[-1].read_text(errors="replace") if logs else ""

    def _prepared_node(self) -> Node:
        if self._node is None:
            self._nodes += 1
            folder = self._folder / f"node-{self._nodes}"
            self._node = Node(folder, self._library, is_preloaded=self._is_preloaded)
        node = self._node
        node.start()
        node.apply(*CLASSES, *HELD)
        node.stop()
        if set(node.prepared) != {claim["metadata"]["name"] for claim in HELD}:
            raise BrokenPromiseError(f"only these claims were prepared on a working disk: {sorted(node.prepared)}")
        return node


def _run_workload(node: Node) -> None:
    if node.start():
        node.apply(*CLAIMS)
        node.delete(HELD[0]["metadata"]["name"], CLAIMS[0]["metadata"]["name"])
    node.stop()


def _check(node: Node) -> None:
    if not node.start():
        raise BrokenPromiseError("the agent does not start again on a disk that works")
    node.check_promises()
    node.release_all()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    Selection.add_arguments(parser, BY_NAME)
    selection = Selection.of(parser.parse_args(), Path("target/faults/disk"))
    with Termination() as termination, tempfile.TemporaryDirectory(prefix="dra-faults-") as folder:
        library = build(Path(folder))
        # Without FAULTS_CONTROL, which agents alone have, it does nothing.
        os.environ["LD_PRELOAD"] = str(library)
        workers = [Campaign(Path(folder) / str(job), library, is_preloaded=True) for job in range(selection.jobs)]
        try:
            calls = workers[0].rehearse()
            kinds = dict(Counter(call.split()[0] for call in calls))
            print(f"{len(calls)} state-writing calls in a case: {kinds}", flush=True)
            chosen = list(selection.cases(len(calls), BY_NAME))
            saved = selection.saved(len(chosen))
            return exit_code(run(chosen, workers, calls.__getitem__, termination, saved))
        finally:
            for worker in workers:
                worker.close()
            preloaded.close()


if __name__ == "__main__":
    sys.exit(main())
