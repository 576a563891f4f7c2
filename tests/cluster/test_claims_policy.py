"""Who may have what: quotas, rights, admin access, and pods that ask in the way of device plugins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import (
    CLAIMS,
    CLASSES,
    NAMESPACES,
    RESOURCE_QUOTAS,
    Kind,
    Object,
    RefusedError,
)
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, container, request

HARDWARE = {"node-a": "dgx-h100", "node-b": "l40s"}
ADMIN_ACCESS = "resource.kubernetes.io/admin-access"
ROLES = Kind("rbac.authorization.k8s.io/v1", "roles")
ROLE_BINDINGS = Kind("rbac.authorization.k8s.io/v1", "rolebindings")

Agents = dict[str, Agent]


def test_resource_quota_per_class(agents: Agents, namespace: Namespace) -> None:
    limit = "gpu.deviceclass.resource.k8s.io/devices"
    namespace.api.create(
        RESOURCE_QUOTAS, {"metadata": {"name": "gpus"}, "spec": {"hard": {limit: "2"}}}, namespace.name
    )

    def counted() -> Object:
        status: Object = namespace.api.get(RESOURCE_QUOTAS, "gpus", namespace.name)["status"]
        return status

    namespace.api.wait(lambda: counted()["used"] == {limit: "0"}, "the quota is counted")
    namespace.api.wait(lambda: too_many(namespace), "the quota is in force")
    namespace.claim("two", request("gpus", "gpu", count=2))
    with pytest.raises(RefusedError, match=r"403 Forbidden.*exceeded quota: gpus, requested: .*=1, used: .*=2"):
        namespace.claim("third", request("gpu", "gpu"))
    # Another class has a quota of its own.
    namespace.claim("other", request("gpu", "research"))
    namespace.pod("user", claim="two")
    namespace.running("user")
    assert len(namespace.environment("user")["DRA_AGENT_REQUEST_GPUS"].split(",")) == 2
    namespace.delete_pod("user")
    namespace.gone("user")
    namespace.delete_claim("two")
    namespace.api.wait(lambda: counted()["used"] == {limit: "0"}, "the quota is free again")
    wait_for_rights(namespace, "third")


def too_many(namespace: Namespace) -> bool:
    """Whether three devices are refused; the API server counts by what it has read of the quota some time ago."""
    devices = {"requests": [request("gpus", "gpu", count=3)]}
    body = {"apiVersion": CLAIMS.version, "metadata": {"name": "too-many"}, "spec": {"devices": devices}}
    try:
        namespace.api.call("POST", f"{CLAIMS.path(namespace.name, None, None)}?dryRun=All", body)
    except RefusedError as refused:
        assert "exceeded quota" in str(refused)
        return True
    return False


def test_namespace_without_rights(agents: Agents, cluster: Cluster, namespace: Namespace) -> None:
    user = {"kind": "User", "name": "developer", "apiGroup": "rbac.authorization.k8s.io"}
    rules = [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["create", "get"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get"]},
    ]
    namespace.api.create(ROLES, {"metadata": {"name": "uses-devices"}, "rules": rules}, namespace.name)
    namespace.api.create(
        ROLE_BINDINGS,
        {
            "metadata": {"name": "developers"},
            "subjects": [user],
            "roleRef": {"kind": "Role", "name": "uses-devices", "apiGroup": "rbac.authorization.k8s.io"},
        },
        namespace.name,
    )
    without = Namespace(cluster, f"{namespace.name}-other")
    try:
        developer = replace(cluster.api, impersonate=(("Impersonate-User", "developer"),))
        without.api = developer
        with pytest.raises(RefusedError, match=r'403 Forbidden.*"developer" cannot create resource "resourceclaims"'):
            without.claim("mine", request("gpu", "gpu"))
        # A namespace that may use devices does; its pod cannot use another namespace's claim, for want of a field.
        allowed = developer
        namespace.api = allowed
        wait_for_rights(namespace, "mine")
        namespace.pod("user", claim="mine")
        namespace.running("user")
    finally:
        without.api = namespace.api = cluster.api
        without.remove()


def wait_for_rights(namespace: Namespace, name: str) -> None:
    """Make a claim as soon as the API server has seen what allows it: a role, or a quota that is free again."""

    def made() -> bool:
        try:
            namespace.claim(name, request("gpu", "gpu"))
        except RefusedError as refused:
            if refused.code != 403:
                raise
            return False
        return True

    namespace.api.wait(made, f"claim {name} may be made")


def test_admin_access_with_the_namespace_label(agents: Agents, namespace: Namespace) -> None:
    namespace.api.patch(NAMESPACES, namespace.name, {"metadata": {"labels": {ADMIN_ACCESS: "true"}}})
    selector = 'device.attributes["dra-agent.internal"].architecture == "Ada Lovelace"'
    namespace.claim("every", request("gpus", "gpu", selector, allocationMode="All"))
    namespace.pod("user", claim="every")
    namespace.running("user")
    # All of them are in use, and the monitor sees them all the same.
    everything = request("gpus", "gpu", selector, allocationMode="All", adminAccess=True)

    def made() -> bool:
        try:
            namespace.claim("watched", everything)
        except RefusedError as refused:
            assert "admin access to devices requires" in str(refused)
            return False
        return True

    namespace.api.wait(made, "the namespace's label is seen")
    namespace.pod("monitor", claim="watched")
    namespace.running("monitor")
    watched = namespace.results("watched")
    assert len(watched) == 4
    assert all(result["adminAccess"] for result in watched)
    assert sorted(result["device"] for result in watched) == sorted(
        result["device"] for result in namespace.results("every")
    )
    given = namespace.environment("monitor")["DRA_AGENT_REQUEST_GPUS"]
    assert sorted(given.split(",")) == sorted(result["device"] for result in watched)
    # When the monitor goes, its claim alone is unprepared.
    namespace.delete_pod("monitor")
    namespace.gone("monitor")
    uids = {name: namespace.get_claim(name)["metadata"]["uid"] for name in ("every", "watched")}
    files = " ".join(agents["node-b"].node.cdi_files())
    assert uids["every"] in files
    assert uids["watched"] not in files


def test_admin_access_without_the_namespace_label(agents: Agents, namespace: Namespace) -> None:
    with pytest.raises(RefusedError, match="admin access to devices requires"):
        namespace.claim("watched", request("gpus", "gpu", allocationMode="All", adminAccess=True))


@pytest.fixture
def drop_in(cluster: Cluster) -> Iterator[str]:
    """The name of a device plugin's resource that a DeviceClass stands for."""
    selector = 'device.driver == "dra-agent.internal" && device.attributes["dra-agent.internal"].type == "gpu"'
    spec = {"selectors": [{"cel": {"expression": selector}}], "extendedResourceName": "vendor.example/gpu"}
    cluster.api.create(CLASSES, {"metadata": {"name": "drop-in"}, "spec": spec})
    yield "vendor.example/gpu"
    cluster.api.delete(CLASSES, "drop-in")


def asking(resource: str, count: int) -> Object:
    """A container that asks as it would ask a device plugin."""
    return container("main", resources={"limits": {resource: str(count)}})


def test_extended_resource_name_drop_in(agents: Agents, namespace: Namespace, drop_in: str) -> None:
    namespace.pod("user", containers=[asking(drop_in, 2)])
    body = namespace.running("user")
    status = body["status"]["extendedResourceClaimStatus"]
    claim = namespace.get_claim(status["resourceClaimName"])
    results = namespace.results(claim)
    assert len({result["device"] for result in results}) == 2
    environment = namespace.environment("user")
    for result in results:
        assert environment[f"DRA_AGENT_DEVICE_{result['device'].replace('-', '_').upper()}_UUID"].startswith("GPU-")
    namespace.delete_pod("user")
    namespace.gone("user")
    uid = claim["metadata"]["uid"]
    assert not any(uid in name for agent in agents.values() for name in agent.node.cdi_files())


def test_extended_resource_of_any_class(agents: Agents, namespace: Namespace) -> None:
    namespace.pod("user", containers=[asking("deviceclass.resource.kubernetes.io/research", 1)])
    namespace.running("user")
    assert [key for key in namespace.environment("user") if key.startswith("DRA_AGENT_DEVICE_GPU_")]
