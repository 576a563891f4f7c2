"""Every state-writing call of an agent fails once, in every way; the agent is started again, and its promises hold.

    make faults                       # every point, every fault
    make faults ARGS='--every 20'     # a sample
    make faults ARGS='--point 17 --fault ENOSPC'

A case: the agent starts with two prepared claims, takes four more of different kinds, releases two, and stops. One of
its state-writing calls is hit on the way. After that the disk works again, the agent is started, and `Node` checks.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from faults.disk import FAULTS, Fault, build
from faults.node import CLAIMS, CLASSES, HELD, BrokenPromiseError, Node


class Campaign:
    """One node after another; a new one only where a case has left claims that nobody can release."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = build(folder)
        self._nodes = 0
        self._node: Node | None = None
        self.calls: list[str] = []
        """Names of the calls of a case without a fault, in their order."""

    def close(self) -> None:
        if self._node is not None:
            self._node.close()

    def rehearse(self) -> list[str]:
        """Run one case without a fault and return the state-writing calls that it makes, one "NAME PATH" each."""
        node = self._prepared_node()
        node.disk.watch()
        _go(node)
        node.disk.repair()
        self.calls = node.disk.calls()
        _check(node)
        return self.calls

    def run(self, point: int, fault: Fault, before_check: Callable[[Node], None] | None = None) -> str:
        """Run one case; return which call was hit, "" where none was. Raises BrokenPromiseError."""
        node = self._prepared_node()
        node.disk.arm(point, fault)
        _go(node)
        hit = next((line.removeprefix("HIT:") for line in node.disk.calls() if line.startswith("HIT:")), "")
        node.disk.repair()
        if before_check is not None:
            before_check(node)
        try:
            _check(node)
        except BaseException:
            node.close()
            self._node = None
            raise
        return hit

    def log(self) -> str:
        """Return what the agent logged last."""
        logs = sorted(self._folder.glob("node-*/log"), key=lambda path: path.stat().st_mtime)
        return logs[-1].read_text(errors="replace") if logs else ""

    def _prepared_node(self) -> Node:
        if self._node is None:
            self._nodes += 1
            self._node = Node(self._folder / f"node-{self._nodes}", self._library)
        node = self._node
        node.start()
        node.apply(*CLASSES, *HELD)
        node.stop()
        if set(node.prepared) != {claim["metadata"]["name"] for claim in HELD}:
            raise BrokenPromiseError(f"a working disk, and only these claims were prepared: {sorted(node.prepared)}")
        return node


def _go(node: Node) -> None:
    if node.start():
        node.apply(*CLAIMS)
        node.delete(HELD[0]["metadata"]["name"], CLAIMS[0]["metadata"]["name"])
    node.stop()


def _check(node: Node) -> None:
    if not node.start():
        raise BrokenPromiseError("the agent does not start again on a disk that works")
    node.settle()
    node.check_promises()
    node.release_all()
    node.stop()


def cases(points: int, faults: Iterable[Fault], every: int, seed: int) -> Iterator[tuple[int, Fault]]:
    """Every `every`-th combination of a point and a fault, beginning at one that the seed chooses."""
    both = [(point, fault) for point in range(points) for fault in faults]
    return iter(both[random.Random(seed).randrange(every) :: every])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="run every N-th case only")
    parser.add_argument("--seed", type=int, default=0, help="with which case to begin")
    parser.add_argument("--point", type=int, help="only this call")
    parser.add_argument("--fault", choices=[fault.name for fault in FAULTS], help="only this fault")
    args = parser.parse_args()
    faults = [fault for fault in FAULTS if args.fault in (None, fault.name)]
    hits: Counter[str] = Counter()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="dra-faults-") as folder:
        campaign = Campaign(Path(folder))
        try:
            calls = campaign.rehearse()
            print(
                f"{len(calls)} state-writing calls in a case: {dict(Counter(c.split()[0] for c in calls))}", flush=True
            )
            began = time.monotonic()
            chosen = [
                (point, fault)
                for point, fault in cases(len(calls), faults, args.every, args.seed)
                if args.point in (None, point)
            ]
            for number, (point, fault) in enumerate(chosen, 1):
                try:
                    hit = campaign.run(point, fault)
                except BrokenPromiseError as broken:
                    failed += 1
                    print(f"FAILED --point {point} --fault {fault.name} ({calls[point]}): {broken}", flush=True)
                    print("\n".join(f"    {line}" for line in campaign.log().splitlines()[-30:]), flush=True)
                    continue
                hits[f"{fault.name} {hit.split()[0] if hit else 'not reached'}"] += 1
                if number % 100 == 0:
                    print(f"{number} of {len(chosen)} cases, {time.monotonic() - began:.0f} s", flush=True)
        finally:
            campaign.close()
    for name, count in sorted(hits.items()):
        print(f"{count:6} {name}")
    print(f"{len(chosen) - failed} passed, {failed} failed in {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
