"""Jobs and queues of Volcano, whose pods have claims."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .api import PODS, Kind, Object
from .drain_probe import EXITS
from .volcano import SCHEDULER
from .workload import Namespace, container, pod_spec

JOBS = Kind("batch.volcano.sh/v1alpha1", "jobs")
QUEUES = Kind("scheduling.volcano.sh/v1beta1", "queues", namespaced=False)
POD_GROUPS = Kind("scheduling.volcano.sh/v1beta1", "podgroups")


class Jobs:
    """Jobs and queues of Volcano in one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._queues: list[str] = []

    def queue(self, name: str, **spec: Any) -> str:
        """Create a queue; return its name in the cluster."""
        full_name = f"{self._namespace.name}-{name}"
        body = {"kind": "Queue", "metadata": {"name": full_name}, "spec": {"weight": 1, **spec}}
        self._namespace.api.create(QUEUES, body)
        self._queues.append(full_name)
        return full_name

    def submit(
        self,
        name: str,
        pods: int,
        *,
        template: str = "gpu",
        queue: str = "default",
        cpu: str = "10m",
        **spec: Any,
    ) -> None:
        """Create a Job that starts only if all its pods can; each pod has a claim of the template."""
        main = container("main", "devices", command=EXITS)
        if cpu:
            main["resources"]["requests"] = {"cpu": cpu}
        pod = pod_spec(template=template, containers=[main], schedulerName=SCHEDULER)
        task = {"name": "worker", "replicas": pods, "template": {"metadata": {}, "spec": pod}}
        body = {
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {
                "schedulerName": SCHEDULER,
                "queue": queue,
                "minAvailable": pods,
                "maxRetry": 3,
                "tasks": [task],
                **spec,
            },
        }
        self._namespace.api.create(JOBS, body, self._namespace.name)

    def pods(self, name: str) -> list[Object]:
        return self._namespace.api.list(PODS, self._namespace.name, labels=f"volcano.sh/job-name={name}")

    def nodes(self, name: str) -> Counter[str]:
        """Return how many pods of a Job run on each node."""
        return Counter(pod["spec"]["nodeName"] for pod in self.pods(name) if pod["status"]["phase"] == "Running")

    def wait_until_running(self, name: str, pods: int) -> Counter[str]:
        self._namespace.api.wait(lambda: self.nodes(name).total() == pods, f"{pods} pods of {name} run")
        return self.nodes(name)

    def wait_until_refused(self, name: str) -> str:
        """Wait until Volcano records in the pod group of a Job why it does not start; return the message."""

        def message() -> str:
            for group in self._namespace.api.list(POD_GROUPS, self._namespace.name):
                if any(owner["name"] == name for owner in group["metadata"]["ownerReferences"]):
                    listed = group.get("status", {}).get("conditions", [])
                    return next((str(one["message"]) for one in listed if one["type"] == "Unschedulable"), "")
            return ""

        self._namespace.api.wait(message, f"Volcano records why {name} does not start")
        return message()

    def delete(self, name: str) -> None:
        self._namespace.api.delete(JOBS, name, self._namespace.name)
        self._namespace.api.wait(lambda: not self.pods(name), f"the pods of {name} are gone")

    def end(self) -> None:
        """Delete all Jobs and queues."""
        for job in self._namespace.api.list(JOBS, self._namespace.name):
            self.delete(job["metadata"]["name"])
        for queue in self._queues:
            self._namespace.api.delete(QUEUES, queue)
