"""What an agent may write of a claim's status where the API server has no rights to single parts of it (before 1.36).

There the right to patch resourceclaims/status is one to all of it, and only the chart's admission policy narrows it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from cluster.conftest import ROOT
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import CLAIMS, Api, Kind
from cluster.kube.cluster import Cluster, running
from cluster.kube.identity import RELEASE, WITHOUT_POLICY
from cluster.kube.workload import Namespace, request
from cluster.test_rights import refusal

GATES = {"DRAResourceClaimGranularStatusAuthorization": False}
OTHER = "other.example.com"
MOST = 32
"""Devices of a claim, and so entries of status.devices: AllocationResultsMaxSize of resource.k8s.io."""
THEIRS = f"entries of driver {DRIVER} and its own node's pools in status.devices, and no others"
# Not a pod: kube-controller-manager forgets pods that are not there.
CONSUMER = {"apiGroup": "example.com", "resource": "trainings", "name": "x", "uid": "y"}
POLICIES = Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", namespaced=False)


@pytest.fixture(scope="module")
def coarse() -> Iterator[Cluster]:
    """A cluster of its own: gates are set when the API server starts."""
    with running(nodes=("node-a",), gates=GATES) as cluster:
        for file in sorted((ROOT / "examples" / "classes").glob("*.yaml")):
            cluster.kubectl("apply", "-f", str(file))
        yield cluster


@pytest.fixture
def inside(coarse: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    name = request.node.name.partition("[")[0].removeprefix("test_").replace("_", "-")[:40].strip("-")
    made = Namespace(coarse, f"{name}-{abs(hash(request.node.name)) % 10_000}")
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture
def own(coarse: Cluster, inside: Namespace) -> Api:
    """An agent of node-a, once the policy that narrows its right is in force."""
    api = coarse.api.as_user(coarse.identity().token("node-a"))
    held(inside, "probe")

    def narrowed() -> bool:
        # Another one each time: what changes nothing is never refused.
        more = [CONSUMER, {**CONSUMER, "uid": str(uuid4())}]
        return bool(refusal(lambda: write(api, inside, "probe", {"reservedFor": more})))

    coarse.api.wait(narrowed, "the policy is in force")
    return api


def result(driver: str, index: int) -> dict[str, Any]:
    return {"request": "gpu", "driver": driver, "pool": "node-a/gpu", "device": f"gpu-{index}"}


def entry(driver: str, index: int, **data: Any) -> dict[str, Any]:
    return {"driver": driver, "pool": "node-a/gpu", "device": f"gpu-{index}", "data": {"index": index, **data}}


def held(namespace: Namespace, name: str, others: int = 1, own: int = 2) -> list[dict[str, Any]]:
    """A claim on devices of both drivers, reserved, where the other driver has told of its own; those entries."""
    namespace.claim(name, request("gpu", "gpu"))
    claim = namespace.get_claim(name)
    entries = [entry(OTHER, index, note="x" * 500) for index in range(others)]
    results = [result(OTHER, index) for index in range(others)] + [result(DRIVER, index) for index in range(own)]
    allocation = {"devices": {"results": results}}
    claim["status"] = {"allocation": allocation, "reservedFor": [CONSUMER], "devices": entries}
    namespace.api.replace(CLAIMS, claim, subresource="status")
    return entries


def entries_of(namespace: Namespace, name: str) -> list[dict[str, Any]]:
    """What the claim's status says of devices; conditions that there are none of are null."""
    found = namespace.get_claim(name)["status"].get("devices", [])
    return [{field: value for field, value in one.items() if value is not None} for one in found]


def write(api: Api, namespace: Namespace, name: str, status: dict[str, Any]) -> object:
    return api.patch(CLAIMS, name, {"status": status}, namespace.name, subresource="status")


def test_the_policy_compiles_against_the_types_of_the_server(coarse: Cluster, own: Api) -> None:
    def checked() -> bool:
        return "typeChecking" in coarse.api.get(POLICIES, f"{RELEASE}-claims").get("status", {})

    coarse.api.wait(checked, "the policy's types are checked")
    assert not coarse.api.get(POLICIES, f"{RELEASE}-claims")["status"]["typeChecking"].get("expressionWarnings")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"allocation": None, "reservedFor": None, "devices": None}, ("allocation", "reservedFor")),
        ({"reservedFor": None}, ("reservedFor",)),
        ({"reservedFor": [CONSUMER, {**CONSUMER, "uid": "z"}]}, ("reservedFor",)),
    ],
    ids=["deallocate", "release", "reserve"],
)
def test_allocation_and_reservation_are_refused_by_name(
    own: Api, inside: Namespace, change: dict[str, Any], named: tuple[str, ...]
) -> None:
    held(inside, "held")
    before = inside.get_claim("held")["status"]
    said = refusal(lambda: write(own, inside, "held", change))
    fields = said.partition("nothing of a claim's status but devices, and this changes ")[2]
    assert all(name in fields for name in named) and "devices" not in fields, said
    assert inside.get_claim("held")["status"] == before


def test_a_free_claim_is_not_allocated(own: Api, inside: Namespace) -> None:
    inside.claim("free", request("gpu", "gpu"))
    allocation = {"allocation": {"devices": {"results": [result(DRIVER, 0)]}}, "devices": [entry(DRIVER, 0)]}
    assert "this changes allocation" in refusal(lambda: write(own, inside, "free", allocation))
    assert not inside.get_claim("free").get("status", {}).get("allocation")


def test_own_entries_come_change_and_go(own: Api, inside: Namespace) -> None:
    theirs = held(inside, "held")
    for ours in ([entry(DRIVER, 0)], [entry(DRIVER, 0, uuid="GPU-0"), entry(DRIVER, 1)], [entry(DRIVER, 1)], []):
        for entries in ([*theirs, *ours], [*ours, *theirs]):
            assert refusal(lambda entries=entries: write(own, inside, "held", {"devices": entries})) == ""
            assert entries_of(inside, "held") == entries


def test_nulls_in_what_others_wrote_are_no_change(own: Api, inside: Namespace) -> None:
    """What a driver tells of a device is JSON of its own, and server-side apply leaves nulls in it."""
    held(inside, "held")
    claim = inside.get_claim("held")
    claim["status"]["devices"][0]["data"] = {
        "nothing": None,
        "list": [None, {"nothing": None}],
        "share": 0.5,
        "none": {},
    }
    inside.api.replace(CLAIMS, claim, subresource="status")
    with_nulls = inside.get_claim("held")["status"]["devices"]
    assert with_nulls[0]["data"]["nothing"] is None, "the API server keeps nulls"
    claim = {"apiVersion": CLAIMS.version, "kind": "ResourceClaim", "metadata": {"name": "held"}}
    path = CLAIMS.path(inside.name, "held", "status") + f"?fieldManager={DRIVER}&force=true"
    content = "application/apply-patch+yaml"
    for data in ({"uuid": "GPU-0"}, {"uuid": "GPU-1"}):
        applied = {**claim, "status": {"devices": [{**entry(DRIVER, 0), "data": data}]}}
        said = refusal(lambda applied=applied: own.call("PATCH", path, applied, media_type=content))
        assert said == ""
        status = inside.get_claim("held")["status"]
        assert with_nulls[0] in status["devices"] and len(status["devices"]) == 2


def test_entries_of_another_driver_stay_as_they_are(own: Api, inside: Namespace) -> None:
    theirs = held(inside, "held", others=3)
    changed = copy.deepcopy(theirs)
    changed[1]["data"]["note"] = "y"
    unready = {
        "type": "Ready",
        "status": "False",
        "reason": "X",
        "message": "",
        "lastTransitionTime": "2026-01-31T12:00:00Z",
    }
    told = [*theirs[:2], {**theirs[2], "conditions": [unready]}]
    for entries in (None, [], theirs[:2], changed, told, [*theirs[:2], entry(DRIVER, 0)]):
        said = refusal(lambda entries=entries: write(own, inside, "held", {"devices": entries}))
        assert THEIRS in said, f"{entries}: {said or 'carried out'}"
    assert entries_of(inside, "held") == theirs


def test_no_entry_is_written_in_another_drivers_name(own: Api, inside: Namespace) -> None:
    held(inside, "held", others=2)
    first, second = entry(OTHER, 0), entry(OTHER, 1)
    inside.api.patch(CLAIMS, "held", {"status": {"devices": [first]}}, inside.name, subresource="status")
    for entries in ([first, second], [second]):
        assert THEIRS in refusal(lambda entries=entries: write(own, inside, "held", {"devices": entries}))


def test_entries_of_another_nodes_agent_stay_as_they_are(own: Api, inside: Namespace) -> None:
    """The same driver and device name, in the pool of another node: another device."""
    held(inside, "held", others=0, own=2)
    claim = inside.get_claim("held")
    claim["status"]["allocation"]["devices"]["results"][1]["pool"] = "node-b/gpu"
    claim["status"]["allocation"]["devices"]["results"][1]["device"] = "gpu-0"
    # An allocation does not change: a second claim has it from the beginning.
    inside.claim("shared", request("gpu", "gpu"))
    shared = inside.get_claim("shared")
    theirs = {**entry(DRIVER, 0), "pool": "node-b/gpu"}
    shared["status"] = {**claim["status"], "devices": [theirs]}
    inside.api.replace(CLAIMS, shared, subresource="status")
    assert refusal(lambda: write(own, inside, "shared", {"devices": [theirs, entry(DRIVER, 0)]})) == ""
    lie = {**theirs, "data": {"uuid": "GPU-666"}}
    for entries in ([lie, entry(DRIVER, 0)], [entry(DRIVER, 0)], []):
        assert THEIRS in refusal(lambda entries=entries: write(own, inside, "shared", {"devices": entries}))
    assert theirs in entries_of(inside, "shared")


def test_the_largest_status_is_judged_within_the_servers_budget(own: Api, inside: Namespace) -> None:
    theirs = held(inside, "held", others=MOST - 1, own=1)
    assert refusal(lambda: write(own, inside, "held", {"devices": [entry(DRIVER, 0), *reversed(theirs)]})) == ""
    assert THEIRS in refusal(lambda: write(own, inside, "held", {"devices": [entry(DRIVER, 0), *theirs[1:]]}))
    assert len(inside.get_claim("held")["status"]["devices"]) == MOST


def test_without_the_policy_the_api_server_refuses_nothing(coarse: Cluster, own: Api, inside: Namespace) -> None:
    """Or the tests above would tell of another guard."""
    api = coarse.api.as_user(coarse.identity(DRIVER, WITHOUT_POLICY).token("node-a"))
    held(inside, "held")
    for change in ({"devices": None}, {"reservedFor": None}, {"allocation": None}):
        assert refusal(lambda change=change: write(api, inside, "held", change)) == ""
    assert not inside.get_claim("held")["status"].get("allocation")


def test_the_agents_own_telling_arrives(coarse: Cluster, inside: Namespace) -> None:
    agent = Agent(
        coarse.node("node-a"), "l40s", coarse.identity().kubeconfig("node-a"), flags=("--claim-status", "all")
    ).start()
    try:
        agent.ready()
        inside.claim("mine", request("gpu", "gpu"))
        inside.pod("user", claim="mine", node="node-a")
        inside.running("user")
        inside.api.wait(lambda: inside.get_claim("mine")["status"].get("devices"), "the claim's status says so")
        (told,) = inside.get_claim("mine")["status"]["devices"]
        assert told["driver"] == DRIVER and "L40S" in told["data"]["productName"]
        inside.delete_pod("user")
        inside.gone("user")
        inside.api.wait(lambda: not inside.results("mine"), "the claim is free again")
    finally:
        agent.end()
