"""What an agent may write of a claim's status without granular permissions in the API server (before 1.36).

There the permission to patch resourceclaims/status covers all of it, and only the chart's admission policy restricts
it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from cluster.conftest import apply_classes
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import CLAIMS, Api, Kind
from cluster.kube.cluster import Cluster, running
from cluster.kube.identity import RELEASE, WITHOUT_POLICY
from cluster.kube.workload import Namespace, request
from cluster.test_permissions import refusal

GATES = {"DRAResourceClaimGranularStatusAuthorization": False}
OTHER = "other.example.com"
MAX_DEVICES = 32
"""Devices of a claim, and so entries of status.devices: AllocationResultsMaxSize of resource.k8s.io."""
FOREIGN_ENTRIES = f"entries of driver {DRIVER} and its own node's pools in status.devices, and no others"
# Not a pod: kube-controller-manager removes reservations of pods that do not exist.
CONSUMER = {"apiGroup": "example.com", "resource": "trainings", "name": "x", "uid": "y"}
POLICIES = Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", namespaced=False)


@pytest.fixture(scope="module")
def coarse_cluster() -> Iterator[Cluster]:
    """A separate cluster: gates are set when the API server starts."""
    with running(nodes=("node-a",), gates=GATES) as cluster:
        apply_classes(cluster)
        yield cluster


@pytest.fixture
def coarse_namespace(coarse_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    name = request.node.name.partition("[")[0].removeprefix("test_").replace("_", "-")[:40].strip("-")
    created = Namespace(coarse_cluster, f"{name}-{abs(hash(request.node.name)) % 10_000}")
    try:
        yield created
    finally:
        created.remove()


@pytest.fixture
def own(coarse_cluster: Cluster, coarse_namespace: Namespace) -> Api:
    """An agent of node-a, once the policy that restricts its permission is in force."""
    api = coarse_cluster.api.as_user(coarse_cluster.identity().token("node-a"))
    create_reserved_claim(coarse_namespace, "probe")

    def policy_is_in_force() -> bool:
        # Another consumer each time: a request without a change is never refused.
        more = [CONSUMER, {**CONSUMER, "uid": str(uuid4())}]
        return bool(refusal(lambda: write(api, coarse_namespace, "probe", {"reservedFor": more})))

    coarse_cluster.api.wait(policy_is_in_force, "the policy is in force")
    return api


def result(driver: str, index: int) -> dict[str, Any]:
    return {"request": "gpu", "driver": driver, "pool": "node-a/gpu", "device": f"gpu-{index}"}


def entry(driver: str, index: int, **data: Any) -> dict[str, Any]:
    return {"driver": driver, "pool": "node-a/gpu", "device": f"gpu-{index}", "data": {"index": index, **data}}


def create_reserved_claim(namespace: Namespace, name: str, others: int = 1, own: int = 2) -> list[dict[str, Any]]:
    """Create a reserved claim on devices of both drivers, with the other driver's entries; return those entries."""
    namespace.claim(name, request("gpu", "gpu"))
    claim = namespace.get_claim(name)
    entries = [entry(OTHER, index, note="x" * 500) for index in range(others)]
    results = [result(OTHER, index) for index in range(others)] + [result(DRIVER, index) for index in range(own)]
    allocation = {"devices": {"results": results}}
    claim["status"] = {"allocation": allocation, "reservedFor": [CONSUMER], "devices": entries}
    namespace.api.replace(CLAIMS, claim, subresource="status")
    return entries


def device_entries(namespace: Namespace, name: str) -> list[dict[str, Any]]:
    """Return the device entries of the claim's status; empty conditions are null."""
    found = namespace.get_claim(name)["status"].get("devices", [])
    return [{field: value for field, value in one.items() if value is not None} for one in found]


def write(api: Api, namespace: Namespace, name: str, status: dict[str, Any]) -> object:
    return api.patch(CLAIMS, name, {"status": status}, namespace.name, subresource="status")


def test_policy_has_no_type_warnings(coarse_cluster: Cluster, own: Api) -> None:
    def checked() -> bool:
        return "typeChecking" in coarse_cluster.api.get(POLICIES, f"{RELEASE}-claims").get("status", {})

    coarse_cluster.api.wait(checked, "the policy's types are checked")
    assert not coarse_cluster.api.get(POLICIES, f"{RELEASE}-claims")["status"]["typeChecking"].get("expressionWarnings")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"allocation": None, "reservedFor": None, "devices": None}, ("allocation", "reservedFor")),
        ({"reservedFor": None}, ("reservedFor",)),
        ({"reservedFor": [CONSUMER, {**CONSUMER, "uid": "z"}]}, ("reservedFor",)),
    ],
    ids=["deallocate", "release", "reserve"],
)
def test_change_of_allocation_or_reservation_is_refused(
    own: Api, coarse_namespace: Namespace, change: dict[str, Any], named: tuple[str, ...]
) -> None:
    create_reserved_claim(coarse_namespace, "held")
    before = coarse_namespace.get_claim("held")["status"]
    message = refusal(lambda: write(own, coarse_namespace, "held", change))
    fields = message.partition("nothing of a claim's status but devices, and this changes ")[2]
    assert all(name in fields for name in named) and "devices" not in fields, message
    assert coarse_namespace.get_claim("held")["status"] == before


def test_a_free_claim_cannot_be_allocated(own: Api, coarse_namespace: Namespace) -> None:
    coarse_namespace.claim("free", request("gpu", "gpu"))
    allocation = {"allocation": {"devices": {"results": [result(DRIVER, 0)]}}, "devices": [entry(DRIVER, 0)]}
    assert "this changes allocation" in refusal(lambda: write(own, coarse_namespace, "free", allocation))
    assert not coarse_namespace.get_claim("free").get("status", {}).get("allocation")


def test_own_entries_can_be_added_changed_and_removed(own: Api, coarse_namespace: Namespace) -> None:
    foreign_entries = create_reserved_claim(coarse_namespace, "held")
    for own_entries in ([entry(DRIVER, 0)], [entry(DRIVER, 0, uuid="GPU-0"), entry(DRIVER, 1)], [entry(DRIVER, 1)], []):
        for entries in ([*foreign_entries, *own_entries], [*own_entries, *foreign_entries]):
            assert refusal(lambda entries=entries: write(own, coarse_namespace, "held", {"devices": entries})) == ""
            assert device_entries(coarse_namespace, "held") == entries


def test_nulls_in_entries_of_others_are_not_a_change(own: Api, coarse_namespace: Namespace) -> None:
    """The data of a driver's device entry is arbitrary JSON, and server-side apply keeps nulls in it."""
    create_reserved_claim(coarse_namespace, "held")
    claim = coarse_namespace.get_claim("held")
    claim["status"]["devices"][0]["data"] = {
        "nothing": None,
        "list": [None, {"nothing": None}],
        "share": 0.5,
        "none": {},
    }
    coarse_namespace.api.replace(CLAIMS, claim, subresource="status")
    with_nulls = coarse_namespace.get_claim("held")["status"]["devices"]
    assert with_nulls[0]["data"]["nothing"] is None, "the API server keeps nulls"
    claim = {"apiVersion": CLAIMS.version, "kind": "ResourceClaim", "metadata": {"name": "held"}}
    path = CLAIMS.path(coarse_namespace.name, "held", "status") + f"?fieldManager={DRIVER}&force=true"
    content = "application/apply-patch+yaml"
    for data in ({"uuid": "GPU-0"}, {"uuid": "GPU-1"}):
        applied = {**claim, "status": {"devices": [{**entry(DRIVER, 0), "data": data}]}}
        message = refusal(lambda applied=applied: own.call("PATCH", path, applied, media_type=content))
        assert message == ""
        status = coarse_namespace.get_claim("held")["status"]
        assert with_nulls[0] in status["devices"] and len(status["devices"]) == 2


def test_entries_of_another_driver_cannot_be_changed(own: Api, coarse_namespace: Namespace) -> None:
    foreign_entries = create_reserved_claim(coarse_namespace, "held", others=3)
    changed = copy.deepcopy(foreign_entries)
    changed[1]["data"]["note"] = "y"
    unready = {
        "type": "Ready",
        "status": "False",
        "reason": "X",
        "message": "",
        "lastTransitionTime": "2026-01-31T12:00:00Z",
    }
    foreign_conditions = [*foreign_entries[:2], {**foreign_entries[2], "conditions": [unready]}]
    for entries in (
        None,
        [],
        foreign_entries[:2],
        changed,
        foreign_conditions,
        [*foreign_entries[:2], entry(DRIVER, 0)],
    ):
        message = refusal(lambda entries=entries: write(own, coarse_namespace, "held", {"devices": entries}))
        assert FOREIGN_ENTRIES in message, f"{entries}: {message or 'carried out'}"
    assert device_entries(coarse_namespace, "held") == foreign_entries


def test_entries_for_another_driver_cannot_be_added(own: Api, coarse_namespace: Namespace) -> None:
    create_reserved_claim(coarse_namespace, "held", others=2)
    first, second = entry(OTHER, 0), entry(OTHER, 1)
    coarse_namespace.api.patch(
        CLAIMS, "held", {"status": {"devices": [first]}}, coarse_namespace.name, subresource="status"
    )
    for entries in ([first, second], [second]):
        assert FOREIGN_ENTRIES in refusal(
            lambda entries=entries: write(own, coarse_namespace, "held", {"devices": entries})
        )


def test_entries_of_another_node_cannot_be_changed(own: Api, coarse_namespace: Namespace) -> None:
    """The same driver and device name, in the pool of another node: another device."""
    create_reserved_claim(coarse_namespace, "held", others=0, own=2)
    claim = coarse_namespace.get_claim("held")
    claim["status"]["allocation"]["devices"]["results"][1]["pool"] = "node-b/gpu"
    claim["status"]["allocation"]["devices"]["results"][1]["device"] = "gpu-0"
    # An allocation is immutable: a second claim has it from the start.
    coarse_namespace.claim("shared", request("gpu", "gpu"))
    shared = coarse_namespace.get_claim("shared")
    foreign_entries = {**entry(DRIVER, 0), "pool": "node-b/gpu"}
    shared["status"] = {**claim["status"], "devices": [foreign_entries]}
    coarse_namespace.api.replace(CLAIMS, shared, subresource="status")
    assert (
        refusal(lambda: write(own, coarse_namespace, "shared", {"devices": [foreign_entries, entry(DRIVER, 0)]})) == ""
    )
    changed_entry = {**foreign_entries, "data": {"uuid": "GPU-666"}}
    for entries in ([changed_entry, entry(DRIVER, 0)], [entry(DRIVER, 0)], []):
        assert FOREIGN_ENTRIES in refusal(
            lambda entries=entries: write(own, coarse_namespace, "shared", {"devices": entries})
        )
    assert foreign_entries in device_entries(coarse_namespace, "shared")


def test_largest_status_fits_the_cel_budget_of_the_apiserver(own: Api, coarse_namespace: Namespace) -> None:
    foreign_entries = create_reserved_claim(coarse_namespace, "held", others=MAX_DEVICES - 1, own=1)
    assert (
        refusal(
            lambda: write(own, coarse_namespace, "held", {"devices": [entry(DRIVER, 0), *reversed(foreign_entries)]})
        )
        == ""
    )
    assert FOREIGN_ENTRIES in refusal(
        lambda: write(own, coarse_namespace, "held", {"devices": [entry(DRIVER, 0), *foreign_entries[1:]]})
    )
    assert len(coarse_namespace.get_claim("held")["status"]["devices"]) == MAX_DEVICES


def test_apiserver_allows_the_changes_without_the_policy(
    coarse_cluster: Cluster, own: Api, coarse_namespace: Namespace
) -> None:
    """Otherwise the tests above would test another check."""
    api = coarse_cluster.api.as_user(coarse_cluster.identity(DRIVER, WITHOUT_POLICY).token("node-a"))
    create_reserved_claim(coarse_namespace, "held")
    for change in ({"devices": None}, {"reservedFor": None}, {"allocation": None}):
        assert refusal(lambda change=change: write(api, coarse_namespace, "held", change)) == ""
    assert not coarse_namespace.get_claim("held")["status"].get("allocation")


def test_status_of_the_agent_is_written(coarse_cluster: Cluster, coarse_namespace: Namespace) -> None:
    agent = Agent(
        coarse_cluster.node("node-a"),
        "l40s",
        coarse_cluster.identity().kubeconfig("node-a"),
        flags=("--claim-status", "all"),
    ).start()
    try:
        agent.ready()
        coarse_namespace.claim("mine", request("gpu", "gpu"))
        coarse_namespace.pod("user", claim="mine", node="node-a")
        coarse_namespace.running("user")
        coarse_namespace.api.wait(
            lambda: coarse_namespace.get_claim("mine")["status"].get("devices"), "the claim's status has the device"
        )
        (reported,) = coarse_namespace.get_claim("mine")["status"]["devices"]
        assert reported["driver"] == DRIVER and "L40S" in reported["data"]["productName"]
        coarse_namespace.delete_pod("user")
        coarse_namespace.wait_until_deleted("user")
        coarse_namespace.api.wait(lambda: not coarse_namespace.results("mine"), "the claim is free again")
    finally:
        agent.end()
