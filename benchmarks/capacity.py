"""Compares what `dra-agent capacity` predicts with kube-scheduler, on random clusters.

In each round, a cluster of many nodes is made from the slices of simulated hosts, and pods of other kinds are scheduled
until the cluster is partly used. The command then predicts how many more pods of one workload fit. This number of pods
and a few more are created, and a real kube-scheduler must bind exactly as many as predicted while the others wait. If
it does not, the cluster and the workload are written to target/bench, and the exit code is 1. A seed determines the
nodes and the workloads; the nodes of the earlier pods are the scheduler's choice.

No kubelet runs: a bound pod does not change. Requires Go and openssl, and uses etcd, kube-apiserver and kube-scheduler
of the test cluster (tests/cluster).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from capacity_clusters import ZONES, Node, Workload, classes, make_nodes, make_workload, slices_of_kinds
from drivers import AGENT, binaries
from drivers_claims import GROUP, NAMESPACE, make_namespace
from drivers_plane import ADMIN, ControlPlane
from results import DIRECTORY, Target, measure, this_machine
from results_table import publish
from run_directory import run_directory
from slices_scheduler import CLAIMS, PODS, READY, scheduling

Object = dict[str, Any]
NODES = "/api/v1/nodes"
SLICES = f"{GROUP}/resourceslices"
DUMPED = (NODES, SLICES, f"{GROUP}/deviceclasses", CLAIMS)
MORE = 2
"""Pods that are created beyond the prediction: they have to wait."""
MAX_PODS = 250
"""A workload that fits more often is limited to the nodes of a zone."""
EARLIER_WORKLOADS = 4
EARLIER_PODS = 15
SETTLE_TIMEOUT_S = 120.0
EVENTS = 2
"""Events after which pods that do not fit are tried again."""
RETRY_S = 25.0
"""Pods that do not fit are tried again after backoffs of at most 10 s (podMaxBackoffSeconds of kube-scheduler)."""


@dataclass(frozen=True)
class Round:
    """The outcome of one round."""

    seed: str
    workload: str
    nodes: int
    devices: int
    predicted: int
    bound: int
    prediction_s: float
    scheduling_s: float

    @property
    def is_equal(self) -> bool:
        """Whether the scheduler bound as many pods as predicted."""
        return self.predicted == self.bound

    def __str__(self) -> str:
        verdict = "equal" if self.is_equal else "DIFFERENT"
        return (
            f"{self.seed}: {self.workload}: {self.predicted} predicted in {self.prediction_s:.2f} s, "
            f"{self.bound} bound in {self.scheduling_s:.1f} s; {self.devices} devices on {self.nodes} nodes: {verdict}"
        )


def main() -> int:
    """Run all rounds; 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=Path, help="directory of the control plane (default: built once)")
    parser.add_argument("--dir", type=Path, default=Path(), help="a directory on the file system to use")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=200, help="nodes of each cluster")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first round, to repeat one of them")
    args = parser.parse_args()
    machine = this_machine()
    programs = args.binaries or binaries()
    with run_directory(args.dir) as directory:
        folder = Path(directory)
        plane = ControlPlane(programs, folder / "control-plane", [])
        try:
            with scheduling(programs, plane, folder / "scheduler"):
                cluster = SimulatedCluster(plane, folder)
                rounds = [cluster.round(f"{args.seed}-{args.first + one}", args.nodes) for one in range(args.rounds)]
        finally:
            plane.close()
    different = [one for one in rounds if not one.is_equal]
    taken = [one.prediction_s for one in rounds]
    none, within = Target("value", "at most", 0), Target("value", "at most", 2)
    measures = [
        measure("rounds with another number than the scheduler's", "", [len(different)], target=none),
        measure(f"prediction for {args.nodes} nodes, whole command", "s", taken, target=within),
        measure("pods that were bound in a round", "", [one.bound for one in rounds], better="higher"),
    ]
    publish("capacity", measures, machine)
    for one in different:
        print(one)
    print(f"load {os.getloadavg()[0]:.1f} at the end")
    return 1 if different else 0


class SimulatedCluster:
    """Nodes, slices and pods on one control plane with a scheduler."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane = plane
        self._folder = folder
        self._kubeconfig = plane.kubeconfig(ADMIN)
        self._kinds = slices_of_kinds(folder)
        make_namespace(plane)
        plane.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}})
        for one in classes():
            plane.ask("POST", f"{GROUP}/deviceclasses", one)

    def round(self, seed: str, count: int) -> Round:
        """Make a cluster, use a part of it, predict, schedule, and remove everything."""
        chance = Random(seed)
        prefix = f"node-{seed}"
        nodes = make_nodes(chance, self._kinds, count, prefix)
        for node in nodes:
            self._create(node)
        for number in range(EARLIER_WORKLOADS):
            self._use(make_workload(chance), f"earlier-{seed}-{number}")
        workload = make_workload(chance)
        predicted, took = self._predict(workload)
        if predicted > MAX_PODS:
            workload.zone = f"zone-{chance.randrange(ZONES)}"
            predicted, took = self._predict(workload)
        before = [one for path in DUMPED for one in self._items(path)]
        began = time.monotonic()
        pods = self._make_pods(workload, f"more-{seed}", predicted + MORE)
        bound = len(self._bound(pods, expected=predicted))
        result = Round(
            seed,
            workload.name,
            len(nodes),
            sum(len(entry["spec"].get("devices") or ()) for node in nodes for entry in node.slices),
            predicted,
            bound,
            took,
            time.monotonic() - began,
        )
        print(result, flush=True)
        if not result.is_equal:
            self._keep(seed, before)
        self._remove()
        return result

    def _create(self, node: Node) -> None:
        body = {"metadata": {"name": node.name, "labels": node.labels}, "status": READY}
        made = self._plane.ask("POST", NODES, body)
        # Admission adds the taint of a node that is not ready, which no controller removes here.
        made["spec"] = {"taints": node.taints, "unschedulable": node.unschedulable}
        self._plane.ask("PUT", f"{NODES}/{node.name}", made)
        for entry in node.slices:
            self._plane.ask("POST", SLICES, entry)

    def _use(self, workload: Workload, prefix: str) -> None:
        """Schedule pods, and remove those that do not fit."""
        pods = self._make_pods(workload, prefix, EARLIER_PODS)
        for name in set(pods) - self._bound(pods):
            self._plane.ask("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    def _make_pods(self, workload: Workload, prefix: str, count: int) -> list[str]:
        names = [f"{prefix}-{number}" for number in range(count)]
        for name in names:
            sources = []
            for number, devices in enumerate(workload.claims):
                claim = f"{name}-{number}"
                self._plane.ask("POST", CLAIMS, {"metadata": {"name": claim}, "spec": {"devices": devices}})
                sources.append({"resourceClaimName": claim})
            self._plane.ask("POST", PODS, {"metadata": {"name": name}, "spec": workload.pod_spec(sources)})
        return names

    def _predict(self, workload: Workload) -> tuple[int, float]:
        """Return the total of the command, and the seconds that it took."""
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
        names = [f"template-{number}" for number in range(len(workload.claims))]
        templates = [
            {**kind, "metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}
            for name, devices in zip(names, workload.claims, strict=True)
        ]
        sources = [{"resourceClaimTemplateName": name} for name in names]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": workload.pod_spec(sources)}
        path = self._folder / "workload.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*templates, pod]}))
        command = [
            str(AGENT),
            "capacity",
            "-f",
            str(path),
            "-n",
            NAMESPACE,
            f"--kubeconfig={self._kubeconfig}",
            "-o",
            "json",
        ]
        began = time.monotonic()
        done = subprocess.run([*command, "--timeout", "60"], capture_output=True, text=True)
        took = time.monotonic() - began
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{workload}: {done.stderr}")
        found: Object = json.loads(done.stdout)
        if found["problems"] or found["total_is_partial"]:
            raise RuntimeError(f"{workload}: no complete result: {found['problems']}, {found['unexamined']}")
        return int(found["total"]), took

    def _bound(self, pods: Sequence[str], *, expected: int | None = None) -> set[str]:
        """Wait until each pod is bound or waits for devices, and return those that are bound.

        With another number than expected, the scheduler gets the time to try those that wait again: after an event,
        because without one it does so only after five minutes (podMaxInUnschedulablePodsDuration).
        """
        wanted = set(pods)
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        last, since, events = None, time.monotonic(), 0
        while True:
            mine = [one for one in self._plane.ask("GET", PODS)["items"] if one["metadata"]["name"] in wanted]
            bound = {one["metadata"]["name"] for one in mine if "nodeName" in one["spec"]}
            if bound != last:
                last, since = bound, time.monotonic()
            settled = all("nodeName" in one["spec"] or _waits(one) for one in mine)
            if settled and expected in (None, len(bound)):
                return bound
            if settled and time.monotonic() > since + RETRY_S:
                if events == EVENTS:
                    return bound
                events, since = events + 1, time.monotonic()
                self._change_class(events)
            if time.monotonic() > max(deadline, since + RETRY_S):
                raise RuntimeError(f"{len(wanted - bound)} of {len(wanted)} pods are neither bound nor unschedulable")
            time.sleep(0.1)

    def _change_class(self, number: int) -> None:
        """Change a class without effect on the devices that it selects: pods that wait for devices are tried again."""
        path = f"{GROUP}/deviceclasses/{classes()[0]['metadata']['name']}"
        changed = self._plane.ask("GET", path)
        changed["metadata"].setdefault("annotations", {})["capacity-round"] = f"{time.monotonic_ns()}-{number}"
        self._plane.ask("PUT", path, changed)

    def _items(self, path: str) -> list[Object]:
        """Return the objects of a list, each with the kind that a list leaves out."""
        found = self._plane.ask("GET", path)
        kind = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        return [{**kind, **one} for one in found["items"]]

    def _keep(self, seed: str, cluster: list[Object]) -> None:
        """Write the cluster of the prediction and the workload, for `dra-agent capacity -f WORKLOAD --from CLUSTER`."""
        folder = DIRECTORY / f"capacity-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": cluster}))
        (folder / "workload.json").write_text((self._folder / "workload.json").read_text())
        print(f"{seed}: the cluster and the workload are in {folder}", flush=True)

    def _remove(self) -> None:
        """Remove everything of a round."""
        for path in (PODS, SLICES, NODES):
            self._plane.ask("DELETE", path, {"gracePeriodSeconds": 0})
        for claim in self._plane.ask("GET", CLAIMS)["items"]:
            # No controller runs that removes the finalizer of an allocated claim.
            if claim["metadata"].pop("finalizers", None):
                self._plane.ask("PUT", f"{CLAIMS}/{claim['metadata']['name']}", claim)
        self._plane.ask("DELETE", CLAIMS)


def _waits(pod: Object) -> bool:
    return any(
        one["type"] == "PodScheduled" and one["status"] == "False" and one.get("reason") == "Unschedulable"
        for one in (pod.get("status") or {}).get("conditions") or ()
    )


if __name__ == "__main__":
    sys.exit(main())
