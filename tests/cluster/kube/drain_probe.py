"""A node that is left: what an operator says of it, and what happened to pods and claims since, with the times."""

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
from .process import LONG, until
from .workload import Namespace, container, pod_spec

KEY = f"{DRIVER}/reclaim"
"""Of the taint."""
EXITS = "trap 'exit 143' TERM; while :; do sleep 3600 & wait $!; done"
"""The shell command of a pod that ends when it is asked to, as what does not catch SIGTERM: not as if it were done."""
IGNORES_SIGTERM = "trap '' TERM; while :; do sleep 3600 & wait $!; done"
"""The shell command of a pod that is only ended by SIGKILL."""


def announce(agent: Agent, seconds: float | None = 30.0, *, hint: bool = False) -> float:
    """Say that the node's host is taken so many seconds from now; the moment, in time.monotonic()."""
    began = time.monotonic()
    status = send_request(agent.state_dir, Start("hint" if hint else "notice", seconds, "a scenario"))
    assert status["phase"] == ("hint" if hint else "notice"), status
    return began


def cancel(agent: Agent) -> None:
    """Take it back, and wait until no device is tainted."""
    send_request(agent.state_dir, Cancel())
    tainted(agent, "")


def status(agent: Agent) -> dict[str, Any]:
    """What `dra-agent reclaim status` shows."""
    try:
        answer: dict[str, Any] = send_request(agent.state_dir, Status())
    except RetryableError as error:
        raise AssertionError(str(error)) from error
    return answer


def taints(agent: Agent) -> dict[str, list[Object]]:
    """The taints of the reclaim by device, as they are published."""
    return {
        name: [taint for taint in device.get("taints", []) if taint["key"] == KEY]
        for name, device in agent.devices().items()
    }


def effects(agent: Agent) -> set[str]:
    """The effects of these taints over all devices; "" stands for devices without one."""
    return {taint["effect"] for found in taints(agent).values() for taint in found or [{"effect": ""}]}


def tainted(agent: Agent, effect: str) -> None:
    """Wait until every device has a taint of that effect, or with "" none."""
    until(lambda: effects(agent) == {effect}, f"every device of {agent.node.name} has {effect or 'no taint'}")


def all_released(agent: Agent, at_most: float = LONG) -> list[dict[str, Any]]:
    """Wait until the agent says that every claim is released; its records of them."""
    claims: list[dict[str, Any]] = []

    def released() -> bool:
        now = status(agent)
        claims[:] = now["claims"]
        kept = {claim["name"]: (claim["state"], claim["pods"][:4]) for claim in claims if claim["state"] != "released"}
        assert now["complete"], f"kept: {kept}, tainted after {now['tainted_after']}"
        return not kept

    until(released, f"every claim of {agent.node.name} is released", at_most)
    return claims


def no_specs(agent: Agent) -> bool:
    """Whether the node has no CDI spec of any claim."""
    return not [name for name in agent.node.cdi_files() if "-claim_" in name]


@dataclass(frozen=True)
class Seen:
    """One change of a pod or a claim."""

    at: float
    """Seconds of time.monotonic()."""
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
    """Every change of the pods and claims of a namespace, from the beginning of the `with` block on."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._seen: dict[Kind, list[Seen]] = {PODS: [], CLAIMS: []}
        self._at_first: dict[Kind, dict[str, int]] = {}
        self._begun = {kind: threading.Event() for kind in self._seen}
        self._ends: list[Callable[[], None]] = []
        self._threads = [threading.Thread(target=self._follow, args=(kind,), daemon=True) for kind in self._seen]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        for kind, begun in self._begun.items():
            assert begun.wait(LONG), f"the watch of {kind.plural} does not begin"
        self._at_first = {kind: self._versions(kind) for kind in self._seen}
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        try:
            for kind in self._seen if failed is None else ():
                until(partial(self._has_all_of, kind), f"the watch of {kind.plural} has caught up")
        finally:
            self._hang_up()

    def _versions(self, kind: Kind) -> dict[str, int]:
        found = self._namespace.api.list(kind, self._namespace.name)
        return {item["metadata"]["uid"]: int(item["metadata"]["resourceVersion"]) for item in found}

    def _has_all_of(self, kind: Kind) -> bool:
        """Whether everything that the API server shows now has been seen: a watch tells of it a moment later."""
        there = self._versions(kind)
        last = {seen.uid: seen for seen in list(self._seen[kind])}
        known = self._at_first[kind] | {
            uid: int(seen.object["metadata"]["resourceVersion"]) for uid, seen in last.items()
        }
        gone = {uid for uid, seen in last.items() if seen.type == "DELETED"}
        return all(known.get(uid, 0) >= version for uid, version in there.items()) and known.keys() - there <= gone

    def _hang_up(self) -> None:
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
                self._seen[kind].append(Seen(time.monotonic(), type_, item))

    def first(self, kind: Kind, when: Callable[[Seen], object], what: str) -> Seen:
        """The first change of which that is true."""
        for seen in list(self._seen[kind]):
            if when(seen):
                return seen
        raise AssertionError(f"never: {what}")

    def created(self, app: str, *, but: set[str]) -> Seen:
        """The first pod of the app that is new."""
        return self.first(
            PODS, lambda seen: app_of(seen.object) == app and seen.uid not in but, f"a new pod of {app} is made"
        )

    def deleted(self, uid: str) -> Seen:
        """When somebody has asked that the pod goes."""
        return self.first(
            PODS,
            lambda seen: seen.uid == uid and "deletionTimestamp" in seen.object["metadata"],
            f"pod {uid} is being deleted",
        )

    def gone(self, uid: str) -> Seen:
        """When the pod was no more."""
        return self.first(PODS, lambda seen: seen.uid == uid and seen.type == "DELETED", f"pod {uid} is gone")

    def over(self, uid: str) -> Seen:
        """When no container of the pod ran any more, as the kubelet says."""
        return self.first(
            PODS,
            lambda seen: (
                seen.uid == uid
                and (seen.type == "DELETED" or seen.object["status"].get("phase") in ("Failed", "Succeeded"))
            ),
            f"pod {uid} has ended",
        )

    def allocated(self, node: str, of: Callable[[Object], bool]) -> Seen:
        """When a claim was first allocated there."""
        return self.first(
            CLAIMS, lambda seen: of(seen.object) and nodes_of(seen.object) == {node}, f"a claim is allocated on {node}"
        )

    def runs(self, app: str, node: str) -> Seen:
        """When a pod of the app first was Running there."""
        return self.first(
            PODS,
            lambda seen: (
                app_of(seen.object) == app
                and seen.object["spec"].get("nodeName") == node
                and seen.object["status"].get("phase") == "Running"
            ),
            f"a pod of {app} runs on {node}",
        )


def app_of(pod: Object) -> str:
    """The workload of a pod."""
    return str(pod["metadata"].get("labels", {}).get("app", ""))


def nodes_of(claim: Object) -> set[str]:
    """The nodes of the devices that a claim has."""
    allocation = claim.get("status", {}).get("allocation", {})
    return {result["pool"].partition("/")[0] for result in allocation.get("devices", {}).get("results", [])}


def pods(namespace: Namespace, app: str) -> list[Object]:
    """The pods of a workload that have not ended."""
    found = namespace.api.list(PODS, namespace.name, labels=f"app={app}")
    return [pod for pod in found if pod["status"]["phase"] not in ("Succeeded", "Failed")]


def run_on(namespace: Namespace, app: str, node: str, count: int = 1, at_most: float = LONG) -> list[Object]:
    """Wait until so many pods of the workload run on that node and no pod of it is anywhere else."""
    found: list[Object] = []

    def there() -> bool:
        found[:] = pods(namespace, app)
        return len(found) == count and all(
            pod["status"]["phase"] == "Running"
            and pod["spec"].get("nodeName") == node
            and "deletionTimestamp" not in pod["metadata"]
            for pod in found
        )

    namespace.api.wait(there, f"{count} pods of {app} run on {node} and none elsewhere", at_most)
    return found


def template(app: str, command: str, grace: int, *, claims: list[Object], **spec: Any) -> Object:
    """The pod template of a workload whose container uses these claims of the pod."""
    used = container("main", *(claim["name"] for claim in claims), command=command)
    body = pod_spec(claims=claims, containers=[used], terminationGracePeriodSeconds=grace, **spec)
    return {"metadata": {"labels": {"app": app}}, "spec": body}


def deployment(app: str, pod: Object, replicas: int = 1) -> tuple[Kind, Object]:
    """A Deployment of pods like that."""
    pod["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": app}}, "template": pod}
    return DEPLOYMENTS, {"metadata": {"name": app}, "spec": spec}


def stateful_set(app: str, pod: Object) -> tuple[Kind, Object]:
    """A StatefulSet of one pod like that."""
    pod["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": 1, "serviceName": app, "selector": {"matchLabels": {"app": app}}, "template": pod}
    return STATEFUL_SETS, {"metadata": {"name": app}, "spec": spec}


def job(app: str, pod: Object, **more: Any) -> tuple[Kind, Object]:
    """A Job of one pod like that; what leaves the node costs it no attempt where `more` has a podFailurePolicy."""
    return JOBS, {"metadata": {"name": app}, "spec": {"backoffLimit": 3, "template": pod, **more}}


DISRUPTIONS_ARE_NO_FAILURES: Mapping[str, Any] = {
    "podFailurePolicy": {
        "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    }
}
"""With this a Job makes a new pod only when the old one has ended (podReplacementPolicy: Failed)."""
