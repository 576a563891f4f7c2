"""Access to devices: quotas, RBAC, admin access, and extended resources as requested from device plugins."""

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
    ApiStatusError,
    Kind,
    Object,
)
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, container, request

HARDWARE = {"node-a": "dgx-h100", "node-b": "l40s"}
ADMIN_ACCESS = "resource.kubernetes.io/admin-access"
ROLES = Kind("rbac.authorization.k8s.io/v1", "roles")
ROLE_BINDINGS = Kind("rbac.authorization.k8s.io/v1", "rolebindings")

Agents = dict[str, Agent]


def test_resource_quota_limits_devices_per_class(agents: Agents, namespace: Namespace) -> None:
    limit = "gpu.deviceclass.resource.k8s.io/devices"
    namespace.api.create(
        RESOURCE_QUOTAS, {"metadata": {"name": "gpus"}, "spec": {"hard": {limit: "2"}}}, namespace.name
    )

    def quota_status() -> Object:
        status: Object = namespace.api.get(RESOURCE_QUOTAS, "gpus", namespace.name)["status"]
        return status

    namespace.api.wait(lambda: quota_status()["used"] == {limit: "0"}, "the quota is counted")
    namespace.api.wait(lambda: quota_is_enforced(namespace), "the quota is in force")
    namespace.claim("two", request("gpus", "gpu", count=2))
    with pytest.raises(ApiStatusError, match=r"403 Forbidden.*exceeded quota: gpus, requested: .*=1, used: .*=2"):
        namespace.claim("third", request("gpu", "gpu"))
    # Another class has a separate quota.
    namespace.claim("other", request("gpu", "research"))
    namespace.pod("user", claim="two")
    namespace.running("user")
    assert len(namespace.environment("user")["DRA_AGENT_REQUEST_GPUS"].split(",")) == 2
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")
    namespace.delete_claim("two")
    namespace.api.wait(lambda: quota_status()["used"] == {limit: "0"}, "the quota is free again")
    create_when_allowed(namespace, "third")


def quota_is_enforced(namespace: Namespace, device_class: str = "gpu") -> bool:
    """Return whether three devices are refused; the API server uses cached copies of the quota and of the class."""
    devices = {"requests": [request("gpus", device_class, count=3)]}
    body = {"apiVersion": CLAIMS.version, "metadata": {"name": "too-many"}, "spec": {"devices": devices}}
    try:
        namespace.api.call("POST", f"{CLAIMS.path(namespace.name, None, None)}?dryRun=All", body)
    except ApiStatusError as error:
        assert "exceeded quota" in str(error)
        return True
    return False


def test_namespace_without_permission_cannot_create_claims(
    agents: Agents, cluster: Cluster, namespace: Namespace
) -> None:
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
        with pytest.raises(ApiStatusError, match=r'403 Forbidden.*"developer" cannot create resource "resourceclaims"'):
            without.claim("mine", request("gpu", "gpu"))
        # A permitted namespace can use devices; its pod cannot name a claim of another namespace: no field exists.
        allowed = developer
        namespace.api = allowed
        create_when_allowed(namespace, "mine")
        namespace.pod("user", claim="mine")
        namespace.running("user")
    finally:
        without.api = namespace.api = cluster.api
        without.remove()


def create_when_allowed(namespace: Namespace, name: str) -> None:
    """Create a claim as soon as the API server observes a role, or a quota that is free again."""

    def created() -> bool:
        try:
            namespace.claim(name, request("gpu", "gpu"))
        except ApiStatusError as error:
            if error.code != 403:
                raise
            return False
        return True

    namespace.api.wait(created, f"claim {name} may be created")


def test_admin_access_is_granted_with_the_namespace_label(agents: Agents, namespace: Namespace) -> None:
    namespace.api.patch(NAMESPACES, namespace.name, {"metadata": {"labels": {ADMIN_ACCESS: "true"}}})
    selector = 'device.attributes["dra-agent.internal"].architecture == "Ada Lovelace"'
    namespace.claim("every", request("gpus", "gpu", selector, allocationMode="All"))
    namespace.pod("user", claim="every")
    namespace.running("user")
    # All of them are in use; the monitor gets them, too.
    everything = request("gpus", "gpu", selector, allocationMode="All", adminAccess=True)

    def created() -> bool:
        try:
            namespace.claim("watched", everything)
        except ApiStatusError as error:
            assert "admin access to devices requires" in str(error)
            return False
        return True

    namespace.api.wait(created, "the namespace's label is seen")
    namespace.pod("monitor", claim="watched")
    namespace.running("monitor")
    watched = namespace.results("watched")
    assert len(watched) == 4
    assert all(result["adminAccess"] for result in watched)
    assert sorted(result["device"] for result in watched) == sorted(
        result["device"] for result in namespace.results("every")
    )
    devices_in_variable = namespace.environment("monitor")["DRA_AGENT_REQUEST_GPUS"]
    assert sorted(devices_in_variable.split(",")) == sorted(result["device"] for result in watched)
    # When the monitor ends, only its claim is unprepared.
    namespace.delete_pod("monitor")
    namespace.wait_until_deleted("monitor")
    uids = {name: namespace.get_claim(name)["metadata"]["uid"] for name in ("every", "watched")}
    files = " ".join(agents["node-b"].node.cdi_files())
    assert uids["every"] in files
    assert uids["watched"] not in files


def test_admin_access_is_refused_without_the_namespace_label(agents: Agents, namespace: Namespace) -> None:
    with pytest.raises(ApiStatusError, match="admin access to devices requires"):
        namespace.claim("watched", request("gpus", "gpu", allocationMode="All", adminAccess=True))


@pytest.fixture
def drop_in(cluster: Cluster) -> Iterator[str]:
    """The name of a device plugin's resource that a DeviceClass replaces."""
    selector = 'device.driver == "dra-agent.internal" && device.attributes["dra-agent.internal"].type == "gpu"'
    spec = {"selectors": [{"cel": {"expression": selector}}], "extendedResourceName": "vendor.example/gpu"}
    cluster.api.create(CLASSES, {"metadata": {"name": "drop-in"}, "spec": spec})
    yield "vendor.example/gpu"
    cluster.api.delete(CLASSES, "drop-in")


def plugin_style_container(resource: str, count: int) -> Object:
    """Return a container that requests the resource as from a device plugin."""
    return container("main", resources={"limits": {resource: str(count)}})


def test_extended_resource_name_replaces_a_device_plugin(agents: Agents, namespace: Namespace, drop_in: str) -> None:
    namespace.pod("user", containers=[plugin_style_container(drop_in, 2)])
    body = namespace.running("user")
    status = body["status"]["extendedResourceClaimStatus"]
    claim = namespace.get_claim(status["resourceClaimName"])
    results = namespace.results(claim)
    assert len({result["device"] for result in results}) == 2
    environment = namespace.environment("user")
    for result in results:
        assert environment[f"DRA_AGENT_DEVICE_{result['device'].replace('-', '_').upper()}_UUID"].startswith("GPU-")
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")
    uid = claim["metadata"]["uid"]
    assert not any(uid in name for agent in agents.values() for name in agent.node.cdi_files())


def test_a_quota_counts_extended_resources_and_claims_together(
    agents: Agents, namespace: Namespace, drop_in: str
) -> None:
    limit = f"requests.{drop_in}"
    namespace.api.create(
        RESOURCE_QUOTAS, {"metadata": {"name": "gpus"}, "spec": {"hard": {limit: "2"}}}, namespace.name
    )

    def used() -> Object:
        found: Object = namespace.api.get(RESOURCE_QUOTAS, "gpus", namespace.name)["status"]["used"]
        return found

    namespace.api.wait(lambda: used() == {limit: "0"}, "the quota is counted")
    namespace.api.wait(lambda: quota_is_enforced(namespace, "drop-in"), "the quota is in force")
    namespace.pod("user", containers=[plugin_style_container(drop_in, 2)])
    namespace.running("user")
    # The claim that the scheduler created for the pod counts once.
    namespace.api.wait(lambda: used() == {limit: "2"}, "two devices are counted")
    with pytest.raises(ApiStatusError, match=r"403 Forbidden.*exceeded quota: gpus, requested: .*=1, used: .*=2"):
        namespace.pod("second", containers=[plugin_style_container(drop_in, 1)])
    with pytest.raises(ApiStatusError, match=r"403 Forbidden.*exceeded quota: gpus, requested: .*=1, used: .*=2"):
        namespace.claim("own", request("gpu", "drop-in"))
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")
    namespace.api.wait(lambda: used() == {limit: "0"}, "the quota is free again")


def test_extended_resource_exists_for_any_class(agents: Agents, namespace: Namespace) -> None:
    namespace.pod("user", containers=[plugin_style_container("deviceclass.resource.kubernetes.io/research", 1)])
    namespace.running("user")
    assert [key for key in namespace.environment("user") if key.startswith("DRA_AGENT_DEVICE_GPU_")]
