"""One round: the agent or `kubectl drain` evacuates a node, and watches record the times of all changes.

T0 is when the metadata service starts to announce the interruption, or when kubectl is started. Times are those at
which a client of the API server sees a change, in seconds since T0.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from reclaim_hosts import Host
from reclaim_workload import Workload, is_ready, node_of_claim, node_of_pod

from cluster.kube.api import CLAIMS, PODS, SLICES, Api, Kind, Object
from cluster.kube.cluster import Cluster
from cluster.kube.process import MARK

PHASES = (
    "noticed",
    "every slice tainted",
    "claims allocated elsewhere",
    "pods ready there",
    "old pods gone",
    "returned",
)
"""`noticed`: the agent receives the announcement. `returned`: kubectl drain exits."""
OWN = "every slice tainted, by the agent"
"""The time from the notice until the agent has seen every slice tainted, measured by the agent."""
END_TIMEOUT_S = 30.0
"""Seconds after the limit within which a drain exits; nothing counts after the limit."""


@dataclass(frozen=True)
class Seen:
    """One watch event."""

    at: float
    """Unix time."""
    type: str
    object: Object

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])


class Watches:
    """Watches the objects of the rounds for the whole benchmark."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._events: list[tuple[Kind, Seen]] = []
        self.changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        inside = {"metadata.namespace": namespace}
        for kind, fields in ((SLICES, None), (PODS, inside), (CLAIMS, inside)):
            begun = threading.Event()
            self._threads.append(threading.Thread(target=self._follow, args=(kind, fields, begun), daemon=True))
            self._threads[-1].start()
            assert begun.wait(10), f"the watch of {kind.plural} does not begin"

    def _follow(self, kind: Kind, fields: Mapping[str, str] | None, begun: threading.Event) -> None:
        for type_, item in self._api.watch(kind, fields=fields, seconds=4 * 3600, begun=lambda _: begun.set()):
            seen = Seen(time.time(), type_, item)
            with self.changed:
                self._events.append((kind, seen))
                self.changed.notify_all()

    def check(self) -> None:
        """Fail if a watch has ended, because no further changes would be recorded."""
        assert all(thread.is_alive() for thread in self._threads), "a watch has ended"

    def position(self) -> int:
        """Return the current position in the recorded events."""
        with self.changed:
            return len(self._events)

    def since(self, position: int) -> list[tuple[Kind, Seen]]:
        """Return the events since a position; the caller must hold `changed`."""
        return self._events[position:]


@dataclass
class Before:
    """The objects on the node before the evacuation."""

    node: str
    slices: set[str]
    pods: set[str]
    claims: set[str]


@dataclass
class Round:
    """The result of a round."""

    who: str
    took: dict[str, float] = field(default_factory=dict)
    """Seconds to each phase that was reached within the limit."""
    plain_moved: int = 0
    """Pods without a device that were deleted."""
    load: float = 0.0
    """The load average over one minute at the start."""
    error: str = ""
    """The last line of output of a failed drain."""


class Drain:
    """`kubectl drain` of one node, in the background."""

    def __init__(self, cluster: Cluster, node: str, limit: float) -> None:
        command = [str(cluster.programs / "kubectl"), "--kubeconfig", str(cluster.kubeconfig), "drain", node]
        command += ["--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={limit:.0f}s"]
        # The discovery cache is warm, like an operator's; the mark lets the cluster stop the process.
        environment = {**os.environ, "KUBECACHEDIR": str(cluster.directory / "kubectl"), MARK: str(cluster.directory)}
        self._kubectl = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        )
        self._output = ""
        self.ended = 0.0
        """Unix time."""
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def wait(self, at_most: float) -> str:
        """Wait until the drain exits; return its last line of output if it failed, otherwise an empty string."""
        self._thread.join(at_most)
        assert self.ended, f"kubectl drain does not end within {at_most:.0f} s"
        return (self._output.strip().splitlines() or ["no output"])[-1] if self._kubectl.returncode else ""

    def _follow(self) -> None:
        _, self._output = self._kubectl.communicate()
        self.ended = time.time()


def leave(who: str, cluster: Cluster, watches: Watches, doomed: Host, workload: Workload, limit: float) -> Round:
    """Evacuate the node, and wait until all phases are complete or the limit has passed."""
    plain = workload.plain_pods()
    before = _before(workload, doomed)
    position = watches.position()
    result = Round(who, load=os.getloadavg()[0])
    drain: Drain | None = None
    if who == "agent":
        t0 = doomed.metadata.take()
    else:
        t0 = time.time()
        drain = Drain(cluster, doomed.name, limit)
    wanted = PHASES[1:5] if who == "agent" else PHASES[2:5]
    deadline = t0 + limit
    with watches.changed:
        while True:
            result.took = _phases(watches.since(position), before, t0, len(before.pods))
            if all(phase in result.took for phase in wanted) or time.time() > deadline:
                break
            watches.changed.wait(min(0.5, max(0.01, deadline - time.time())))
    result.took = {phase: took for phase, took in result.took.items() if took <= limit}
    if drain is not None:
        result.error = drain.wait(limit + END_TIMEOUT_S)
        if not result.error:
            result.took["returned"] = drain.ended - t0
        cluster.kubectl("uncordon", doomed.name)
    else:
        requests = doomed.metadata.requests_since(t0)
        if requests:
            result.took["noticed"] = requests[0] - t0
        own = doomed.status()["tainted_after"]
        if own is not None:
            result.took[OWN] = own
    watches.check()
    result.plain_moved = len(plain - workload.plain_pods())
    return result


def _before(workload: Workload, doomed: Host) -> Before:
    pods = workload.pods()
    slices = {item["metadata"]["uid"] for item in doomed.agent.slices() if item["spec"].get("devices")}
    claims = {claim["metadata"]["uid"] for claim in workload.claims()}
    return Before(doomed.name, slices, {pod["metadata"]["uid"] for pod in pods}, claims)


def _phases(seen: list[tuple[Kind, Seen]], before: Before, t0: float, count: int) -> dict[str, float]:
    first: dict[str, dict[str, float]] = {phase: {} for phase in PHASES}
    for kind, event in seen:
        if kind is SLICES and event.uid in before.slices and _is_tainted(event.object):
            first["every slice tainted"].setdefault(event.uid, event.at)
        elif kind is CLAIMS and event.uid not in before.claims and node_of_claim(event.object) not in ("", before.node):
            first["claims allocated elsewhere"].setdefault(event.uid, event.at)
        elif kind is PODS and event.uid in before.pods and event.type == "DELETED":
            first["old pods gone"].setdefault(event.uid, event.at)
        elif (
            kind is PODS
            and event.uid not in before.pods
            and node_of_pod(event.object) not in ("", before.node)
            and is_ready(event.object)
        ):
            first["pods ready there"].setdefault(event.uid, event.at)
    needed = dict.fromkeys(PHASES, count) | {"every slice tainted": len(before.slices)}
    return {
        phase: sorted(times.values())[needed[phase] - 1] - t0
        for phase, times in first.items()
        if needed[phase] and len(times) >= needed[phase]
    }


def _is_tainted(item: Object) -> bool:
    devices = item["spec"].get("devices", [])
    return all(any(taint["effect"] == "NoExecute" for taint in device.get("taints", [])) for device in devices)
