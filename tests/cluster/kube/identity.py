"""The identity of an agent: the chart's service account, permissions and admission policy, and pod-bound tokens.

The agents of tests run as processes on the host, with exactly the token that the kubelet would mount into their pod.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from . import image
from .api import NAMESPACES, PODS, SERVICE_ACCOUNTS, Kind

if TYPE_CHECKING:
    from .cluster import Cluster

CHART = Path(__file__).resolve().parents[3] / "deploy" / "helm" / "dra-agent"
RELEASE = "dra-agent"
TEMPLATES = ("serviceaccount", "rbac", "admissionpolicy")
WITHOUT_POLICY = "admissionPolicy.create=false"
"""Helm does not show a template that renders to nothing."""
TOKEN_LIFETIME_S = 6 * 3600
REVIEWS = Kind("authorization.k8s.io/v1", "subjectaccessreviews", namespaced=False)
REVIEW = {"apiVersion": REVIEWS.version, "kind": "SubjectAccessReview"}


class Identity:
    """The service account of one driver's agents, created from the chart's templates for that driver."""

    def __init__(self, cluster: Cluster, driver: str, default: str, values: tuple[str, ...] = ()) -> None:
        """Install it; the `default` driver uses the namespace dra-agent, another one a separate namespace.

        An identity with `values` of the chart, each as "podEviction=delete", has a separate namespace, too.
        """
        self.cluster = cluster
        is_default = driver == default and not values
        suffix = "" if is_default else "-" + hashlib.sha256(" ".join((driver, *values)).encode()).hexdigest()[:8]
        self.namespace = f"dra-agent{suffix}"
        self.driver = driver
        if cluster.api.find(NAMESPACES, self.namespace) is None:  # unless an earlier attempt created it
            cluster.api.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        templates = [name for name in TEMPLATES if (name, True) != ("admissionpolicy", WITHOUT_POLICY in values)]
        show_flags = [flag for name in templates for flag in ("--show-only", f"templates/{name}.yaml")]
        flags = ["--set", ",".join((f"driverName={driver}", *values)), *show_flags]
        text = cluster.helm_template(RELEASE, CHART, *flags, namespace=self.namespace)
        cluster.kubectl("apply", "--namespace", self.namespace, "-f", "-", input=text)
        # After a missing permission the agent retries much later, because an administrator has to grant it first.
        cluster.api.wait(self._may_publish, f"the permissions of {self.namespace} are known to the API server")

    def _may_publish(self) -> bool:
        review = {
            "user": f"system:serviceaccount:{self.namespace}:{RELEASE}",
            "resourceAttributes": {"group": "resource.k8s.io", "resource": "resourceslices", "verb": "create"},
        }
        answer = self.cluster.api.call("POST", REVIEWS.path(None, None, None), {**REVIEW, "spec": review})
        return bool(answer["status"]["allowed"])

    def token(self, node: str, *, pod: str = "") -> str:
        """Return a token that is bound to a pod of this account on the node; it expires with the pod."""
        pod = pod or f"agent-{node}"
        body = self.cluster.api.find(PODS, pod, self.namespace)
        if body is None:
            spec = {
                "nodeName": node,
                "serviceAccountName": RELEASE,
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "stand-in", "image": image.NAME, "imagePullPolicy": "Never"}],
            }
            body = self.cluster.api.create(PODS, {"metadata": {"name": pod}, "spec": spec}, self.namespace)
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": body["metadata"]["uid"]}
        request = {"boundObjectRef": bound, "expirationSeconds": TOKEN_LIFETIME_S}
        path = SERVICE_ACCOUNTS.path(self.namespace, RELEASE, "token")
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": request}
        return str(self.cluster.api.call("POST", path, body)["status"]["token"])

    def kubeconfig(self, node: str) -> Path:
        """Return a kubeconfig for the agent on the node."""
        path = self.cluster.directory / f"{self.namespace}-{self.driver}-{node}.kubeconfig"
        if not path.exists():
            self.cluster.control_plane.kubeconfig("agent", path, token=self.token(node))
        return path
