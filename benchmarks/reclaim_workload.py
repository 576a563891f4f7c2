"""The workload: pods with a claim each, additional plain pods, and a PodDisruptionBudget that allows no eviction."""

from __future__ import annotations

from collections import Counter

from cluster.kube.api import CLAIMS, DEPLOYMENTS, NODES, PODS, Kind, Object
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, pod_spec, request

BUDGETS = Kind("policy/v1", "poddisruptionbudgets")
CLAIM_PODS = 4
SETTLE_TIMEOUT_S = 600.0


class Workload:
    """A Deployment of pods with a claim each, and one of plain pods in a separate namespace."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self.namespace = Namespace(cluster, "with-claims")
        self._plain = Namespace(cluster, "plain")
        self._plain_count = 0

    def create(self, node: str) -> None:
        """Start the pods with claims on that node."""
        self.namespace.template("gpu", request("gpu", "gpu"))
        with self._only(node):
            self._deploy(self.namespace, "with-claims", CLAIM_PODS, template="gpu")
            self.settled(node)

    def add_plain(self, node: str, count: int) -> None:
        """Start plain pods on that node."""
        self._plain_count = count
        with self._only(node):
            self._deploy(self._plain, "plain", count)
            self.settled(node)

    def remove_plain(self) -> None:
        """Delete the plain pods."""
        self._plain_count = 0
        self._api.delete(DEPLOYMENTS, "plain", self._plain.name)
        self._api.wait(lambda: not self._api.list(PODS, self._plain.name), "the plain pods are gone", SETTLE_TIMEOUT_S)

    def forbid_disruption(self) -> None:
        """Create a PodDisruptionBudget that allows no eviction of the pods with claims."""
        spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "with-claims"}}}
        self._api.create(BUDGETS, {"metadata": {"name": "none"}, "spec": spec}, self.namespace.name)

        def known() -> bool:
            budget = self._api.get(BUDGETS, "none", self.namespace.name)
            status = budget.get("status", {})
            return bool(status.get("currentHealthy") == CLAIM_PODS and status.get("disruptionsAllowed") == 0)

        self._api.wait(known, "the budget is known to allow none", 60)

    def allow_disruption(self) -> None:
        """Delete the budget."""
        self._api.delete(BUDGETS, "none", self.namespace.name)

    def settled(self, node: str) -> None:
        """Wait until every pod runs on that node, and all old pods are gone."""
        self._still()
        elsewhere = self._elsewhere(node)
        if elsewhere:
            with self._only(node):
                for pod in elsewhere:
                    self._api.delete(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])
                self._still()
        assert not self._elsewhere(node), f"pods are not only on {node}"

    def _elsewhere(self, node: str) -> list[Object]:
        pods = [*self.pods(), *self._api.list(PODS, self._plain.name)]
        return [pod for pod in pods if node_of_pod(pod) != node]

    def plain_node(self) -> str:
        """Return the node with most plain pods, because a drain that timed out leaves some; empty if there are none."""
        nodes = Counter(node_of_pod(pod) for pod in self._api.list(PODS, self._plain.name))
        return max(nodes, key=lambda node: nodes[node], default="")

    def node(self) -> str:
        """Return the node of the pods with claims."""
        return node_of_pod(self.pods()[0])

    def pods(self) -> list[Object]:
        """Return the pods with claims."""
        return self._api.list(PODS, self.namespace.name)

    def claims(self) -> list[Object]:
        """Return the claims of the pods."""
        return self._api.list(CLAIMS, self.namespace.name)

    def plain_pods(self) -> set[str]:
        """Return the UIDs of the plain pods."""
        return {pod["metadata"]["uid"] for pod in self._api.list(PODS, self._plain.name)}

    def _deploy(self, namespace: Namespace, name: str, count: int, template: str | None = None) -> None:
        labels = {"app": name}
        spec = pod_spec(template=template, restartPolicy="Always", tolerations=[])
        pod = {"metadata": {"labels": labels}, "spec": spec}
        body = {"replicas": count, "selector": {"matchLabels": labels}, "template": pod}
        self._api.create(DEPLOYMENTS, {"metadata": {"name": name}, "spec": body}, namespace.name)

    def _still(self) -> None:
        def still() -> bool:
            pods, claims = self.pods(), self.claims()
            plain = self._api.list(PODS, self._plain.name)
            for pod in (*pods, *plain):
                # Its owner has created a replacement, and nothing else deletes this pod.
                if pod["status"].get("phase") == "Failed":
                    self._api.delete(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])
            return (
                (len(pods), len(claims), len(plain)) == (CLAIM_PODS, CLAIM_PODS, self._plain_count)
                and all(is_ready(pod) for pod in (*pods, *plain))
                and all(node_of_claim(claim) for claim in claims)
            )

        self._api.wait(still, "every pod runs and no old one is left", SETTLE_TIMEOUT_S, every=0.5)

    def _only(self, node: str) -> _Only:
        return _Only(self._cluster, node)


class _Only:
    """Allows pods to be scheduled on only one node."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._api = cluster.api
        self._others = [one.name for one in cluster.nodes if one.name != node]

    def __enter__(self) -> None:
        for name in self._others:
            self._api.patch(NODES, name, {"spec": {"unschedulable": True}})

    def __exit__(self, *_: object) -> None:
        for name in self._others:
            self._api.patch(NODES, name, {"spec": {"unschedulable": None}})


def node_of_pod(pod: Object) -> str:
    """Return the node that a pod is bound to, or an empty string."""
    return str(pod["spec"].get("nodeName", ""))


def node_of_claim(claim: Object) -> str:
    """Return the node of a claim's devices, or an empty string."""
    allocation = claim.get("status", {}).get("allocation") or {}
    results = allocation.get("devices", {}).get("results", [])
    return str(results[0]["pool"]).partition("/")[0] if results else ""


def is_ready(pod: Object) -> bool:
    """Return whether a pod runs, is ready, and is not being deleted."""
    conditions = {one["type"]: one["status"] for one in pod.get("status", {}).get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]
