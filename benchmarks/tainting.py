"""Measures the time from a notice until every slice is tainted: agents of several source trees, alternating in one run.

It uses a real etcd and kube-apiserver, and one agent per tree on a simulated DGX H100 (18 devices in two pools), each
for a separate node. An operator gives the notice; after the merge of signals, all sources use the same code. Each round
has two times: the agent's own, and the time from before the notice until a watch has reported the last slice. `--load`
adds processes that compute, and one that syncs files, as on a node that is being drained. The benchmark never fails.

    PYTHONPATH=tests .venv/bin/python benchmarks/tainting.py --trees before=/path/to/a/checkout after=. --rounds 50
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from drivers import binaries
from drivers_plane import ControlPlane

from dra_agent.errors import AgentError
from dra_agent.reclaim.control import Cancel, Start, Status, send_request

DRIVER = "dra-agent.internal"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
COMPUTES = "while True: sum(range(10_000))"
SYNCS = """
import os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
while True:
    os.pwrite(file, os.urandom(65536), 0); os.fsync(file); time.sleep(0.002)
"""


class Agent:
    """`dra-agent run` of one source tree, for a separate node."""

    def __init__(self, name: str, tree: Path, plane: ControlPlane, folder: Path) -> None:
        self.name = name
        self.node = f"node-{name}"
        self.state = folder / name / "s"
        (folder / name).mkdir()
        plane.ask("POST", "/api/v1/nodes", {"metadata": {"name": self.node}})
        command = [sys.executable, "-m", "dra_agent", "run", "--kubeconfig", str(plane.kubeconfig(name))]
        command += ["--simulate", "dgx-h100", "--node-name", self.node, "--state-dir", str(self.state)]
        command += ["--kubelet-dir", str(folder / name / "k"), "--cdi-dir", str(folder / name / "cdi")]
        environment = {**os.environ, "PYTHONPATH": str(tree.resolve() / "python")}
        self._log = (folder / f"{name}.log").open("wb")
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=environment, cwd=tree)

    def notice(self) -> None:
        send_request(self.state, Start("notice", 3600.0, "a benchmark"))

    def cancel(self) -> None:
        send_request(self.state, Cancel())

    def tainted_after(self) -> float | None:
        value = send_request(self.state, Status())["tainted_after"]
        return None if value is None else float(value)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


class Watch:
    """Detects with a watch of the API server when all slices of a node are tainted, or none is."""

    def __init__(self, plane: ControlPlane) -> None:
        self._slices: dict[str, dict[str, Any]] = {}
        self._told: queue.Queue[float] = queue.Queue()
        listed = plane.ask("GET", SLICES)
        for item in listed["items"]:
            self._slices[item["metadata"]["name"]] = item
        version = listed["metadata"]["resourceVersion"]
        self._path = f"{SLICES}?watch=1&resourceVersion={version}&timeoutSeconds=3600"
        self._http = plane._http
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        with self._http.stream("GET", self._path, timeout=None) as answer:
            for line in answer.iter_lines():
                item = json.loads(line)["object"]
                self._slices[item["metadata"]["name"]] = item
                self._told.put(time.monotonic())

    def wait(self, node: str, tainted: bool, at_most: float = 30.0) -> float:
        """Return the time at which every slice of the node had that state."""
        moment, end = time.monotonic(), time.monotonic() + at_most
        while not self._are(node, tainted):
            if time.monotonic() > end:
                raise RuntimeError(f"the slices of {node} are not as they should be")
            try:
                moment = self._told.get(timeout=0.1)
            except queue.Empty:
                continue
        return moment

    def _are(self, node: str, tainted: bool) -> bool:
        mine = [item for item in list(self._slices.values()) if item["spec"].get("nodeName") == node]
        devices = [device for item in mine for device in item["spec"].get("devices", [])]
        found = [any(t["key"] == f"{DRIVER}/reclaim" for t in device.get("taints", [])) for device in devices]
        return bool(found) and all(one is tainted for one in found)


@contextmanager
def load(programs: int, folder: Path) -> Iterator[None]:
    """Run this number of processes that compute and, unless it is 0, one that syncs."""
    commands = [[sys.executable, "-c", COMPUTES]] * programs
    if programs:
        commands.append([sys.executable, "-c", SYNCS, str(folder / "synced")])
    running = [subprocess.Popen(command) for command in commands]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def measure(agents: list[Agent], watch: Watch, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return for each agent and round: the seconds that the agent reports, and those that the watch measured."""
    found: dict[str, list[tuple[float, float]]] = {agent.name: [] for agent in agents}
    for _ in range(rounds):
        for agent in random.sample(agents, len(agents)):
            watch.wait(agent.node, False)
            time.sleep(0.5)
            began = time.monotonic()
            agent.notice()
            seen = watch.wait(agent.node, True) - began
            reported = agent.tainted_after()
            while reported is None:
                time.sleep(0.02)
                reported = agent.tainted_after()
            found[agent.name].append((reported, seen))
            agent.cancel()
    return found


def show(title: str, found: dict[str, list[tuple[float, float]]]) -> None:
    """Print the results in milliseconds."""
    print(f"\n{title}, load {os.getloadavg()[0]:.1f}")
    for name, pairs in found.items():
        for source, values in (("agent", [own for own, _ in pairs]), ("watch", [seen for _, seen in pairs])):
            cuts = statistics.quantiles(values, n=20)
            print(f"  {name:10} {source}: p50 {cuts[9] * 1e3:6.1f}  p95 {cuts[18] * 1e3:6.1f}  of {len(values)}")


def main() -> None:
    """Measure and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", nargs="+", default=["this=."], metavar="NAME=PATH")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--load", type=int, nargs="+", default=[0, 4])
    args = parser.parse_args()
    trees = dict(tree.split("=", 1) for tree in args.trees)
    with tempfile.TemporaryDirectory(prefix="dra") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        plane = ControlPlane(binaries(), folder / "p", list(trees))
        stack.callback(plane.close)
        agents = []
        for name, tree in trees.items():
            agents.append(Agent(name, Path(tree), plane, folder))
            stack.callback(agents[-1].end)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            items = plane.ask("GET", SLICES)["items"]
            if len({item["spec"]["nodeName"] for item in items}) == len(agents) and len(items) >= 2 * len(agents):
                break
            time.sleep(0.5)
        else:
            raise RuntimeError(
                "not every agent publishes: " + (folder / f"{next(iter(trees))}.log").read_text()[-2000:]
            )
        time.sleep(2)
        watch = Watch(plane)
        for programs in args.load:
            with load(programs, folder):
                show(f"{programs} other programs", measure(agents, watch, args.rounds))


if __name__ == "__main__":
    try:
        main()
    except AgentError as error:
        sys.exit(str(error))
