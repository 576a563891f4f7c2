"""Claims, templates and pods for tests: what users write, in one namespace of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from . import image
from .api import CLAIMS, EVENTS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, TEMPLATES, Api, Object
from .cluster import Cluster
from .process import LONG

WAIT = image.IDLE
"""The shell command of a pod that runs until it is deleted, and then ends at once."""


def request(name: str, device_class: str, *selectors: str, count: int | None = None, **more: Any) -> Object:
    """One request of a class, with CEL selectors: `request("gpu", "gpu", 'device.driver == "x.example"', count=2)`.

    More fields as the API names them: `allocationMode="All"`, `tolerations=[...]`, `adminAccess=True`.
    """
    exactly: Object = {"deviceClassName": device_class, **more}
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": selector}} for selector in selectors]
    if count is not None:
        exactly |= {"allocationMode": "ExactCount", "count": count}
    return {"name": name, "exactly": exactly}


def first_available(name: str, *alternatives: Object) -> Object:
    """A request of alternatives, each made by `request`."""
    return {"name": name, "firstAvailable": [{"name": one["name"], **one["exactly"]} for one in alternatives]}


def match(attribute: str, *requests: str) -> Object:
    """A constraint: the named requests' devices have the same value."""
    return {"matchAttribute": attribute, "requests": list(requests)}


def opaque(driver: str, parameters: Object, *requests: str) -> Object:
    """Configuration of a claim for a driver."""
    return {"opaque": {"driver": driver, "parameters": parameters}, "requests": list(requests)}


def _devices(requests: Sequence[Object], constraints: Sequence[Object], config: Sequence[Object]) -> Object:
    devices: Object = {"requests": list(requests)}
    if constraints:
        devices["constraints"] = list(constraints)
    if config:
        devices["config"] = list(config)
    return {"devices": devices}


class Namespace:
    """One scenario's namespace. Everything in it is gone when the scenario ends."""

    def __init__(self, cluster: Cluster, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Create it and wait for its service account, without which no pod can be made."""
        self.cluster = cluster
        self.api: Api = cluster.api
        self.name = name
        self.api.create(NAMESPACES, {"metadata": {"name": name, "labels": dict(labels or {})}})
        self.api.wait(lambda: self.api.get(SERVICE_ACCOUNTS, "default", name), f"a service account in {name}")

    def claim(
        self,
        name: str,
        *requests: Object,
        constraints: Sequence[Object] = (),
        config: Sequence[Object] = (),
    ) -> Object:
        """Create a ResourceClaim of these requests (see `request`)."""
        spec = _devices(requests, constraints, config)
        return self.api.create(CLAIMS, {"metadata": {"name": name}, "spec": spec}, self.name)

    def template(
        self,
        name: str,
        *requests: Object,
        constraints: Sequence[Object] = (),
        config: Sequence[Object] = (),
    ) -> Object:
        """Create a ResourceClaimTemplate: every pod that names it gets a claim of its own."""
        spec = {"spec": _devices(requests, constraints, config)}
        return self.api.create(TEMPLATES, {"metadata": {"name": name}, "spec": spec}, self.name)

    def pod(
        self,
        name: str,
        *,
        claim: str | None = None,
        template: str | None = None,
        claims: Sequence[Object] = (),
        command: str = WAIT,
        containers: Sequence[Object] | None = None,
        init_containers: Sequence[Object] = (),
        node: str | None = None,
        **spec: Any,
    ) -> Object:
        """Create a pod; with `claim` or `template` its container `main` uses that claim under the name `devices`.

        For more claims or containers give `claims` (spec.resourceClaims) and `containers` (made by `container`). `node`
        is a node selector, so that the scheduler still allocates. Further arguments are fields of the pod's spec.
        """
        body = {"metadata": {"name": name, "labels": {"app": name}}}
        body["spec"] = pod_spec(
            claim=claim,
            template=template,
            claims=claims,
            command=command,
            containers=containers,
            init_containers=init_containers,
            node=node,
            **spec,
        )
        return self.api.create(PODS, body, self.name)

    def get_pod(self, name: str) -> Object:
        """The pod as it is now."""
        return self.api.get(PODS, name, self.name)

    def get_claim(self, name: str) -> Object:
        """The claim as it is now."""
        return self.api.get(CLAIMS, name, self.name)

    def claim_of(self, pod: str, pod_claim: str = "devices") -> Object:
        """The claim that was made for a pod from a template, or that it names."""
        body = self.get_pod(pod)
        for status in body["status"].get("resourceClaimStatuses", []):
            if status["name"] == pod_claim:
                return self.get_claim(status["resourceClaimName"])
        names = {entry["name"]: entry.get("resourceClaimName") for entry in body["spec"].get("resourceClaims", [])}
        assert names.get(pod_claim), f"pod {pod} has no claim {pod_claim} yet"
        return self.get_claim(str(names[pod_claim]))

    def results(self, claim: Object | str) -> list[Object]:
        """The devices that a claim got, each {request, driver, pool, device, ...}; empty where it is not allocated."""
        body = self.get_claim(claim) if isinstance(claim, str) else claim
        allocation = body.get("status", {}).get("allocation", {})
        return list(allocation.get("devices", {}).get("results", []))

    def running(self, *pods: str, at_most: float = LONG) -> Object:
        """Wait until every named pod is Running with all containers ready; the last one. Fails where one ends."""

        def runs(name: str) -> bool:
            status = self.get_pod(name)["status"]
            assert status["phase"] not in ("Succeeded", "Failed"), f"pod {name} ended: {status}"
            ready = [container["ready"] for container in status.get("containerStatuses", [])]
            return status["phase"] == "Running" and all(ready)

        for name in pods:
            self.api.wait(partial(runs, name), f"pod {name} runs", at_most)
        return self.get_pod(pods[-1])

    def ended(self, pod: str, at_most: float = LONG, phase: str = "Succeeded") -> str:
        """Wait until the pod has ended in that phase; the log of its first container."""

        def has_ended() -> bool:
            return bool(self.get_pod(pod)["status"]["phase"] in ("Succeeded", "Failed"))

        self.api.wait(has_ended, f"pod {pod} has ended", at_most)
        body = self.get_pod(pod)
        said = self.log(pod, body["spec"]["containers"][0]["name"])
        assert body["status"]["phase"] == phase, f"{pod} is {body['status']['phase']}: {said}"
        return said

    def gone(self, *pods: str, at_most: float = LONG) -> float:
        """Wait until the named pods are no more; seconds."""

        def left() -> list[str]:
            return [name for name in pods if self.api.find(PODS, name, self.name)]

        return self.api.wait(lambda: not left(), f"{', '.join(pods)} gone", at_most)

    def delete_pod(self, name: str, *, grace: int | None = None) -> None:
        """Delete; `gone` waits for it. Grace 0 takes it out of the API at once, while its containers may still run."""
        self.api.delete(PODS, name, self.name, grace=grace)

    def delete_claim(self, name: str) -> None:
        """Delete; it goes when nobody uses it any more."""
        self.api.delete(CLAIMS, name, self.name)

    def log(self, pod: str, container: str | None = None) -> str:
        """What a container has printed."""
        return self.api.log(pod, self.name, container)

    def execute(self, pod: str, command: str, container: str | None = None) -> str:
        """Run a shell command in a container; what it printed."""
        chosen = ["-c", container] if container else []
        return self.cluster.kubectl("exec", "-n", self.name, pod, *chosen, "--", "/bin/sh", "-c", command)

    def environment(self, pod: str, container: str | None = None) -> dict[str, str]:
        """The environment of a container's first process."""
        said = self.execute(pod, "tr '\\0' '\\n' < /proc/1/environ", container)
        return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)

    def events(self, name: str) -> list[str]:
        """What is said about an object of the namespace: "Reason: message", oldest first."""
        listed = self.api.list(EVENTS, self.name, fields={"involvedObject.name": name})
        listed.sort(key=lambda event: event["metadata"]["creationTimestamp"])
        return [f"{event['reason']}: {event['message']}" for event in listed]

    def scheduled_never(self, pod: str, pattern: str, at_most: float = LONG) -> str:
        """Wait until the scheduler says why the pod does not fit, with this text in it."""
        said: list[str] = []

        def refused() -> bool:
            conditions = self.get_pod(pod)["status"].get("conditions", [])
            said[:] = [c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
            return any(pattern in message for message in said)

        self.api.wait(refused, f"the scheduler says {pattern!r} of {pod}, not {said}", at_most)
        return said[0]

    def kept_away(self, *requests: Object, node: str | None = None) -> None:
        """Wait until the scheduler knows that no device is to be had for these requests, on a node or anywhere.

        It watches slices, rules of taints and pods apart: it can have a pod that was made after a taint before it has
        that.
        """

        def refused() -> bool:
            name = f"probe-{uuid4()}"
            self.claim(name, *requests)
            self.pod(name, claim=name, node=node)
            try:
                return not is_scheduled(self.api, name, self.name)
            finally:
                self.delete_pod(name, grace=1)
                self.gone(name)
                self.delete_claim(name)
                self.api.wait(lambda: not self.api.find(CLAIMS, name, self.name), f"claim {name} is gone")

        self.api.wait(refused, "the scheduler knows that there is no device")

    def remove(self) -> None:
        """Delete everything of it, and wait until no pod and no claim of it is left."""
        for kind in (PODS, CLAIMS):
            # Owners first: a Job, a Deployment or a DaemonSet would make new pods.
            if kind is PODS:
                self.api.delete(NAMESPACES, self.name)
            for item in self.api.list(kind, self.name):
                self.api.delete(kind, item["metadata"]["name"], self.name, grace=1 if kind is PODS else None)

        def empty() -> bool:
            return not self.api.list(PODS, self.name) and not self.api.list(CLAIMS, self.name)

        self.api.wait(empty, f"namespace {self.name} is empty")


def is_scheduled(api: Api, pod: str, namespace: str) -> bool:
    """Wait until the scheduler has looked at a pod; whether it found a node for it."""
    decided: list[str] = []

    def looked() -> bool:
        conditions = api.get(PODS, pod, namespace)["status"].get("conditions", [])
        decided[:] = [one["status"] for one in conditions if one["type"] == "PodScheduled"]
        return bool(decided)

    api.wait(looked, f"the scheduler has looked at {pod}")
    return decided == ["True"]


def close(cluster: Cluster, node: str) -> None:
    """Cordon a node, and wait until the scheduler knows of it."""
    cluster.api.patch(NODES, node, {"spec": {"unschedulable": True}})
    wait_until_closed(cluster, node)


def wait_until_closed(cluster: Cluster, node: str) -> None:
    """Wait until the scheduler knows that a node takes no pod.

    It watches nodes and pods apart: it can have a pod that was made after a cordon or taint before it has that.
    """
    api, within = cluster.api, "default"
    api.wait(lambda: api.get(SERVICE_ACCOUNTS, "default", within), f"a service account in {within}")

    def kept_away() -> bool:
        name = f"probe-{uuid4()}"
        api.create(PODS, {"metadata": {"name": name}, "spec": pod_spec(node=node)}, within)
        try:
            return not is_scheduled(api, name, within)
        finally:
            api.delete(PODS, name, within, grace=0)

    api.wait(kept_away, f"the scheduler knows that {node} is closed")


def container(name: str, *claims: str | tuple[str, str], command: str = WAIT, **more: Any) -> Object:
    """A container that uses the pod's claims, each by name or (name, request)."""
    used = [{"name": one} if isinstance(one, str) else {"name": one[0], "request": one[1]} for one in claims]
    body: Object = {
        "name": name,
        "image": image.NAME,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", command],
    }
    if used:
        body["resources"] = {"claims": used}
    return {**body, **more}


def pod_spec(
    *,
    claim: str | None = None,
    template: str | None = None,
    claims: Sequence[Object] = (),
    command: str = WAIT,
    containers: Sequence[Object] | None = None,
    init_containers: Sequence[Object] = (),
    node: str | None = None,
    **spec: Any,
) -> Object:
    """The spec of a pod, as `Namespace.pod` describes it; for Jobs and Deployments too."""
    all_claims = list(claims)
    if claim is not None:
        all_claims.append({"name": "devices", "resourceClaimName": claim})
    if template is not None:
        all_claims.append({"name": "devices", "resourceClaimTemplateName": template})
    if containers is None:
        used = ["devices"] if claim is not None or template is not None else []
        containers = [container("main", *used, command=command)]
    body: Object = {
        "containers": list(containers),
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        **spec,
    }
    if init_containers:
        body["initContainers"] = list(init_containers)
    if all_claims:
        body["resourceClaims"] = all_claims
    if node is not None:
        body["nodeSelector"] = {"kubernetes.io/hostname": node}
    return body
