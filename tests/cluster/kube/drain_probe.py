"""A node being drained: the notice of an operator, and the timed changes of pods and claims."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from dra_agent.errors import RetryableError
from dra_agent.reclaim.control import Cancel, Start, Status, send_request

from .agent import DRIVER, Agent
from .api import CLAIMS, DEPLOYMENTS, JOBS, PODS, STATEFUL_SETS, Api, Kind, Object
from .process import LONG_TIMEOUT_S, until
from .workload import Namespace, container, pod_spec

KEY = f"{DRIVER}/reclaim"
"""The key of the reclaim taint."""
EXITS = "trap 'exit 143' TERM; while :; do sleep 3600 & wait $!; done"
"""The shell command of a pod that ends on SIGTERM with the status of an unhandled signal, not as completed."""
IGNORES_SIGTERM = "trap '' TERM; while :; do sleep 3600 & wait $!; done"
"""The shell command of a pod that only SIGKILL ends."""


def announce(agent: Agent, seconds: float | None = 30.0, *, hint: bool = False) -> float:
    """Announce a reclaim of the node in that many seconds; return the time of time.monotonic()."""
    started = time.monotonic()
    status = send_request(agent.state_dir, Start("hint" if hint else "notice", seconds, "a scenario"))
    assert status["phase"] == ("hint" if hint else "notice"), status
    return started


def cancel(agent: Agent) -> None:
    """Cancel it, and wait until no device is tainted."""
    send_request(agent.state_dir, Cancel())
    tainted(agent, "")


def status(agent: Agent) -> dict[str, Any]:
    """Return the data of `dra-agent reclaim status`."""
    try:
        answer: dict[str, Any] = send_request(agent.state_dir, Status())
    except RetryableError as error:
        raise AssertionError(str(error)) from error
    return answer


def taints(agent: Agent) -> dict[str, list[Object]]:
    """Return the published reclaim taints by device."""
    return {
        name: [taint for taint in device.get("taints", []) if taint["key"] == KEY]
        for name, device in agent.devices().items()
    }


def effects(agent: Agent) -> set[str]:
    """Return the effects of these taints over all devices; "" stands for devices without a taint."""
    return {taint["effect"] for found in taints(agent).values() for taint in found or [{"effect": ""}]}


def tainted(agent: Agent, effect: str) -> None:
    """Wait until every device has a taint of that effect, or with "" no taint."""
    until(lambda: effects(agent) == {effect}, f"every device of {agent.node.name} has {effect or 'no taint'}")


def all_released(agent: Agent, timeout_s: float = LONG_TIMEOUT_S) -> list[dict[str, Any]]:
    """Wait until the agent reports every claim as released; return its records of them."""
    claims: list[dict[str, Any]] = []

    def released() -> bool:
        now = status(agent)
        claims[:] = now["claims"]
        kept = {claim["name"]: (claim["state"], claim["pods"][:4]) for claim in claims if claim["state"] != "released"}
        assert now["complete"], f"kept: {kept}, tainted after {now['tainted_after']}"
        return not kept

    until(released, f"every claim of {agent.node.name} is released", timeout_s)
    return claims


def no_specs(agent: Agent) -> bool:
    """Return whether the node has no CDI spec of any claim."""
    return not [name for name in agent.node.cdi_files() if "-claim_" in name]


@dataclass(frozen=True)
class ObjectChange:
    """One change of a pod or a claim."""

    at: float
    """Time of time.monotonic()."""
    type: str
    """ADDED, MODIFIED or DELETED."""
    object: Object

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.object["metadata"]["name"])

    @property
    def uid(self) -> str:
        """The object's uid."""
        return str(self.object["metadata"]["uid"])


class History:
    """Every change of the pods and claims of a namespace during the `with` block."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.changes: dict[Kind, list[ObjectChange]] = {PODS: [], CLAIMS: []}
        self._at_first: dict[Kind, dict[str, int]] = {}
        self._begun = {kind: threading.Event() for kind in self.changes}
        self._ends: list[Callable[[], None]] = []
        self._threads = [threading.Thread(target=self._follow, args=(kind,), daemon=True) for kind in self.changes]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        for kind, begun in self._begun.items():
            assert begun.wait(LONG_TIMEOUT_S), f"the watch of {kind.plural} does not begin"
        self._at_first = {kind: self._versions(kind) for kind in self.changes}
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        try:
            for kind in self.changes if failed is None else ():
                until(partial(self._is_up_to_date, kind), f"the watch of {kind.plural} has caught up")
        finally:
            self._stop_watches()

    def _versions(self, kind: Kind) -> dict[str, int]:
        found = self._namespace.api.list(kind, self._namespace.name)
        return {item["metadata"]["uid"]: int(item["metadata"]["resourceVersion"]) for item in found}

    def _is_up_to_date(self, kind: Kind) -> bool:
        """Return whether every current object has been observed: a watch delivers changes later than a list."""
        current = self._versions(kind)
        last = {change.uid: change for change in list(self.changes[kind])}
        known = self._at_first[kind] | {
            uid: int(change.object["metadata"]["resourceVersion"]) for uid, change in last.items()
        }
        gone = {uid for uid, change in last.items() if change.type == "DELETED"}
        return all(known.get(uid, 0) >= version for uid, version in current.items()) and known.keys() - current <= gone

    def _stop_watches(self) -> None:
        for end in self._ends:
            end()
        for thread in self._threads:
            thread.join()

    def _follow(self, kind: Kind) -> None:
        api: Api = self._namespace.api

        def begun(end: Callable[[], None]) -> None:
            self._ends.append(end)
            self._begun[kind].set()

        for type_, item in api.watch(kind, begun=begun):
            if item["metadata"].get("namespace") == self._namespace.name:
                self.changes[kind].append(ObjectChange(time.monotonic(), type_, item))

    def first(self, kind: Kind, when: Callable[[ObjectChange], object], what: str) -> ObjectChange:
        """Return the first matching change."""
        for change in list(self.changes[kind]):
            if when(change):
                return change
        raise AssertionError(f"not observed: {what}")

    def created(self, app: str, *, but: set[str]) -> ObjectChange:
        """Return the creation of the first new pod of the app."""
        return self.first(
            PODS, lambda change: app_of(change.object) == app and change.uid not in but, f"a new pod of {app} is made"
        )

    def deleted(self, uid: str) -> ObjectChange:
        """Return the change that requested deletion of the pod."""
        return self.first(
            PODS,
            lambda change: change.uid == uid and "deletionTimestamp" in change.object["metadata"],
            f"pod {uid} is being deleted",
        )

    def wait_until_deleted(self, uid: str) -> ObjectChange:
        """Return the change that removed the pod."""
        return self.first(PODS, lambda change: change.uid == uid and change.type == "DELETED", f"pod {uid} is gone")

    def ended(self, uid: str) -> ObjectChange:
        """Return the change after which no container of the pod ran, as the kubelet reports it."""
        return self.first(
            PODS,
            lambda change: (
                change.uid == uid
                and (change.type == "DELETED" or change.object["status"].get("phase") in ("Failed", "Succeeded"))
            ),
            f"pod {uid} has ended",
        )

    def allocated(self, node: str, of: Callable[[Object], bool]) -> ObjectChange:
        """Return the change that first allocated a matching claim on the node."""
        return self.first(
            CLAIMS,
            lambda change: of(change.object) and nodes_of(change.object) == {node},
            f"a claim is allocated on {node}",
        )

    def runs(self, app: str, node: str) -> ObjectChange:
        """Return the change in which a pod of the app first was Running on the node."""
        return self.first(
            PODS,
            lambda change: (
                app_of(change.object) == app
                and change.object["spec"].get("nodeName") == node
                and change.object["status"].get("phase") == "Running"
            ),
            f"a pod of {app} runs on {node}",
        )


def app_of(pod: Object) -> str:
    """Return the workload of a pod."""
    return str(pod["metadata"].get("labels", {}).get("app", ""))


def nodes_of(claim: Object) -> set[str]:
    """Return the nodes of the devices that a claim holds."""
    allocation = claim.get("status", {}).get("allocation", {})
    return {result["pool"].partition("/")[0] for result in allocation.get("devices", {}).get("results", [])}


def pods(namespace: Namespace, app: str) -> list[Object]:
    """Return the pods of a workload that have not ended."""
    found = namespace.api.list(PODS, namespace.name, labels=f"app={app}")
    return [pod for pod in found if pod["status"]["phase"] not in ("Succeeded", "Failed")]


def run_on(
    namespace: Namespace, app: str, node: str, count: int = 1, timeout_s: float = LONG_TIMEOUT_S
) -> list[Object]:
    """Wait until exactly that many pods of the workload run, all on that node."""
    found: list[Object] = []

    def current() -> bool:
        found[:] = pods(namespace, app)
        return len(found) == count and all(
            pod["status"]["phase"] == "Running"
            and pod["spec"].get("nodeName") == node
            and "deletionTimestamp" not in pod["metadata"]
            for pod in found
        )

    namespace.api.wait(current, f"{count} pods of {app} run on {node} and none elsewhere", timeout_s)
    return found


def template(app: str, command: str, grace: int, *, claims: list[Object], **spec: Any) -> Object:
    """Return the pod template of a workload whose container uses these claims of the pod."""
    used = container("main", *(claim["name"] for claim in claims), command=command)
    body = pod_spec(claims=claims, containers=[used], terminationGracePeriodSeconds=grace, **spec)
    return {"metadata": {"labels": {"app": app}}, "spec": body}


def deployment(app: str, pod: Object, replicas: int = 1) -> tuple[Kind, Object]:
    """Return a Deployment of such pods."""
    pod["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": app}}, "template": pod}
    return DEPLOYMENTS, {"metadata": {"name": app}, "spec": spec}


def stateful_set(app: str, pod: Object) -> tuple[Kind, Object]:
    """Return a StatefulSet of one such pod."""
    pod["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": 1, "serviceName": app, "selector": {"matchLabels": {"app": app}}, "template": pod}
    return STATEFUL_SETS, {"metadata": {"name": app}, "spec": spec}


def job(app: str, pod: Object, **more: Any) -> tuple[Kind, Object]:
    """Return a Job of one such pod; an eviction does not count as an attempt if `more` has a podFailurePolicy."""
    return JOBS, {"metadata": {"name": app}, "spec": {"backoffLimit": 3, "template": pod, **more}}


DISRUPTIONS_ARE_NO_FAILURES: Mapping[str, Any] = {
    "podFailurePolicy": {
        "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    }
}
"""With this a Job creates a new pod only after the old one has ended (podReplacementPolicy: Failed)."""
