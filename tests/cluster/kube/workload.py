"""Claims, templates and pods of users, in one namespace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from . import image
from .api import CLAIMS, EVENTS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, TEMPLATES, Api, Object
from .cluster import Cluster
from .process import LONG_TIMEOUT_S

WAIT = image.IDLE
"""The shell command of a pod that runs until it is deleted, and then ends at once."""


def request(name: str, device_class: str, *selectors: str, count: int | None = None, **more: Any) -> Object:
    """Return one request of a class, with CEL selectors: `request("gpu", "gpu", 'device.driver == "x"', count=2)`.

    Further fields as in the API: `allocationMode="All"`, `tolerations=[...]`, `adminAccess=True`.
    """
    exactly: Object = {"deviceClassName": device_class, **more}
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": selector}} for selector in selectors]
    if count is not None:
        exactly |= {"allocationMode": "ExactCount", "count": count}
    return {"name": name, "exactly": exactly}


def first_available(name: str, *alternatives: Object) -> Object:
    """Return a request with alternatives, each built by `request`."""
    return {"name": name, "firstAvailable": [{"name": one["name"], **one["exactly"]} for one in alternatives]}


def match(attribute: str, *requests: str) -> Object:
    """Return a constraint: the devices of the named requests have the same value."""
    return {"matchAttribute": attribute, "requests": list(requests)}


def opaque(driver: str, parameters: Object, *requests: str) -> Object:
    """Return the configuration of a claim for a driver."""
    return {"opaque": {"driver": driver, "parameters": parameters}, "requests": list(requests)}


def _devices(requests: Sequence[Object], constraints: Sequence[Object], config: Sequence[Object]) -> Object:
    devices: Object = {"requests": list(requests)}
    if constraints:
        devices["constraints"] = list(constraints)
    if config:
        devices["config"] = list(config)
    return {"devices": devices}


class Namespace:
    """The namespace of one scenario. Its objects are deleted when the scenario ends."""

    def __init__(self, cluster: Cluster, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Create it and wait for its service account, without which no pod can be created."""
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
        """Create a ResourceClaim with these requests (see `request`)."""
        spec = _devices(requests, constraints, config)
        return self.api.create(CLAIMS, {"metadata": {"name": name}, "spec": spec}, self.name)

    def template(
        self,
        name: str,
        *requests: Object,
        constraints: Sequence[Object] = (),
        config: Sequence[Object] = (),
    ) -> Object:
        """Create a ResourceClaimTemplate: every pod that names it gets its own claim."""
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

        For more claims or containers pass `claims` (spec.resourceClaims) and `containers` (built by `container`).
        `node` is a node selector, so that the scheduler still allocates. Further arguments are fields of the pod spec.
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
        """Return the current pod."""
        return self.api.get(PODS, name, self.name)

    def get_claim(self, name: str) -> Object:
        """Return the current claim."""
        return self.api.get(CLAIMS, name, self.name)

    def claim_of(self, pod: str, pod_claim: str = "devices") -> Object:
        """Return the claim that was created for a pod from a template, or that it names."""
        body = self.get_pod(pod)
        for status in body["status"].get("resourceClaimStatuses", []):
            if status["name"] == pod_claim:
                return self.get_claim(status["resourceClaimName"])
        names = {entry["name"]: entry.get("resourceClaimName") for entry in body["spec"].get("resourceClaims", [])}
        assert names.get(pod_claim), f"pod {pod} has no claim {pod_claim} yet"
        return self.get_claim(str(names[pod_claim]))

    def results(self, claim: Object | str) -> list[Object]:
        """Return the devices of a claim, each {request, driver, pool, device, ...}; empty if it is not allocated."""
        body = self.get_claim(claim) if isinstance(claim, str) else claim
        allocation = body.get("status", {}).get("allocation", {})
        return list(allocation.get("devices", {}).get("results", []))

    def running(self, *pods: str, timeout_s: float = LONG_TIMEOUT_S) -> Object:
        """Wait until every named pod is Running with all containers ready; return the last one. Fails if one ends."""

        def runs(name: str) -> bool:
            status = self.get_pod(name)["status"]
            assert status["phase"] not in ("Succeeded", "Failed"), f"pod {name} ended: {status}"
            ready = [container["ready"] for container in status.get("containerStatuses", [])]
            return status["phase"] == "Running" and all(ready)

        for name in pods:
            self.api.wait(partial(runs, name), f"pod {name} runs", timeout_s)
        return self.get_pod(pods[-1])

    def ended(self, pod: str, timeout_s: float = LONG_TIMEOUT_S, phase: str = "Succeeded") -> str:
        """Wait until the pod has ended in that phase; return the log of its first container."""

        def has_ended() -> bool:
            return bool(self.get_pod(pod)["status"]["phase"] in ("Succeeded", "Failed"))

        self.api.wait(has_ended, f"pod {pod} has ended", timeout_s)
        body = self.get_pod(pod)
        output = self.log(pod, body["spec"]["containers"][0]["name"])
        assert body["status"]["phase"] == phase, f"{pod} is {body['status']['phase']}: {output}"
        return output

    def wait_until_deleted(self, *pods: str, timeout_s: float = LONG_TIMEOUT_S) -> float:
        """Wait until the named pods are deleted; return seconds."""

        def remaining() -> list[str]:
            return [name for name in pods if self.api.find(PODS, name, self.name)]

        return self.api.wait(lambda: not remaining(), f"{', '.join(pods)} gone", timeout_s)

    def delete_pod(self, name: str, *, grace: int | None = None) -> None:
        """Delete the pod; `wait_until_deleted` waits for it.

        Grace 0 removes it from the API at once, while its containers may still run.
        """
        self.api.delete(PODS, name, self.name, grace=grace)

    def delete_claim(self, name: str) -> None:
        """Delete a claim; it is removed once no pod uses it."""
        self.api.delete(CLAIMS, name, self.name)

    def log(self, pod: str, container: str | None = None) -> str:
        """Return the output of a container."""
        return self.api.log(pod, self.name, container)

    def execute(self, pod: str, command: str, container: str | None = None) -> str:
        """Run a shell command in a container; return its output."""
        chosen = ["-c", container] if container else []
        return self.cluster.kubectl("exec", "-n", self.name, pod, *chosen, "--", "/bin/sh", "-c", command)

    def environment(self, pod: str, container: str | None = None) -> dict[str, str]:
        """Return the environment of a container's first process."""
        output = self.execute(pod, "tr '\\0' '\\n' < /proc/1/environ", container)
        return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)

    def events(self, name: str) -> list[str]:
        """Return the Events of an object of the namespace: "Reason: message", oldest first."""
        listed = self.api.list(EVENTS, self.name, fields={"involvedObject.name": name})
        listed.sort(key=lambda event: event["metadata"]["creationTimestamp"])
        return [f"{event['reason']}: {event['message']}" for event in listed]

    def wait_for_scheduling_failure(self, pod: str, pattern: str, timeout_s: float = LONG_TIMEOUT_S) -> str:
        """Wait until the scheduler reports that the pod does not fit, with this text; return the message."""
        messages: list[str] = []

        def refused() -> bool:
            conditions = self.get_pod(pod)["status"].get("conditions", [])
            messages[:] = [c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
            return any(pattern in message for message in messages)

        self.api.wait(refused, f"the scheduler reports {pattern!r} for {pod}, not {messages}", timeout_s)
        return messages[0]

    def wait_for_prepare_failure(self, pod: str, text: str = "", timeout_s: float = LONG_TIMEOUT_S) -> str:
        """Wait for the kubelet's event, with this text, about a claim that cannot be prepared; return it."""
        found: list[str] = []

        def reported() -> bool:
            reports = [event for event in self.events(pod) if "FailedPrepareDynamicResources" in event]
            found[:] = [event for event in reports if text in event]
            return bool(found)

        self.api.wait(reported, f"the kubelet reports {text!r} for {pod}, not {self.events(pod)}", timeout_s)
        return found[0]

    def wait_until_no_device(self, *requests: Object, node: str | None = None) -> None:
        """Wait until the scheduler finds no device for these requests, on a node or anywhere.

        It watches slices, taint rules and pods separately: it can observe a pod that was created after a taint before
        it observes the taint.
        """

        def refused() -> bool:
            name = f"probe-{uuid4()}"
            self.claim(name, *requests)
            self.pod(name, claim=name, node=node)
            try:
                return not is_scheduled(self.api, name, self.name)
            finally:
                self.delete_pod(name, grace=1)
                self.wait_until_deleted(name)
                self.delete_claim(name)
                self.api.wait(lambda: not self.api.find(CLAIMS, name, self.name), f"claim {name} is gone")

        self.api.wait(refused, "the scheduler finds no device")

    def remove(self) -> None:
        """Delete all its objects, and wait until no pod and no claim is left."""
        for kind in (PODS, CLAIMS):
            # Owners first: a Job, a Deployment or a DaemonSet would create new pods.
            if kind is PODS:
                self.api.delete(NAMESPACES, self.name)
            for item in self.api.list(kind, self.name):
                self.api.delete(kind, item["metadata"]["name"], self.name, grace=1 if kind is PODS else None)

        def empty() -> bool:
            return not self.api.list(PODS, self.name) and not self.api.list(CLAIMS, self.name)

        self.api.wait(empty, f"namespace {self.name} is empty")


def is_scheduled(api: Api, pod: str, namespace: str) -> bool:
    """Wait until the scheduler has handled a pod; return whether it found a node."""
    decided: list[str] = []

    def handled() -> bool:
        conditions = api.get(PODS, pod, namespace)["status"].get("conditions", [])
        decided[:] = [one["status"] for one in conditions if one["type"] == "PodScheduled"]
        return bool(decided)

    api.wait(handled, f"the scheduler has handled {pod}")
    return decided == ["True"]


def cordon(cluster: Cluster, node: str) -> None:
    """Cordon a node, and wait until the scheduler observes it."""
    cluster.api.patch(NODES, node, {"spec": {"unschedulable": True}})
    wait_until_no_pod_fits(cluster, node)


def wait_until_no_pod_fits(cluster: Cluster, node: str) -> None:
    """Wait until the scheduler places no pod on a node.

    It watches nodes and pods separately: it can observe a pod that was created after a cordon or taint before it
    observes that.
    """
    api, within = cluster.api, "default"
    api.wait(lambda: api.get(SERVICE_ACCOUNTS, "default", within), f"a service account in {within}")

    def wait_until_no_device() -> bool:
        name = f"probe-{uuid4()}"
        api.create(PODS, {"metadata": {"name": name}, "spec": pod_spec(node=node)}, within)
        try:
            return not is_scheduled(api, name, within)
        finally:
            api.delete(PODS, name, within, grace=0)

    api.wait(wait_until_no_device, f"the scheduler places no pod on {node}")


def container(name: str, *claims: str | tuple[str, str], command: str = WAIT, **more: Any) -> Object:
    """Return a container that uses the pod's claims, each by name or (name, request)."""
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
    """Return the spec of a pod, as `Namespace.pod` describes it; for Jobs and Deployments too."""
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
