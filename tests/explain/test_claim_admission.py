"""Quotas that do not permit further claims, as the API server counts them, in `explain`, `capacity` and gangs."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.cases import claim, device, make_request, slice_of
from dra_cluster.explain.capacity import capacity, copy_of_claims, copy_of_pod
from dra_cluster.explain.changes import apply_changes, parse_change
from dra_cluster.explain.claim_explanation import explain_pod
from dra_cluster.explain.gang import gang_of_workload
from dra_cluster.explain.pod_claims import pod_claims
from dra_cluster.explain.snapshot import Snapshot
from dra_cluster.explain.workloads import PodSet

Json = dict[str, Any]
DEVICES = "any.deviceclass.resource.k8s.io/devices"
EXTENDED = "requests.example.com/gpu"
IMPLICIT = "requests.deviceclass.resource.kubernetes.io/any"
CLASS: Json = {"metadata": {"name": "any"}, "spec": {"extendedResourceName": "example.com/gpu"}}
OWN = {"name": "own", "resourceClaimTemplateName": "template"}


def quota(key: str, hard: str, used: str = "0", **spec: Any) -> Json:
    return {"metadata": {"name": "gpus"}, "spec": spec, "status": {"hard": {key: hard}, "used": {key: used}}}


def template(**request: Any) -> Json:
    metadata = {"name": "template", "namespace": "default"}
    return {"metadata": metadata, "spec": {"spec": claim(make_request(**request))["spec"]}}


def snapshot(*quotas: Json, count: int = 1, claims: tuple[Json, ...] = ()) -> Snapshot:
    devices = slice_of(*(device(f"d{number}") for number in range(8)), name="n1", pool="n1", nodeName="n1")
    node = {"metadata": {"name": "n1"}}
    found = Snapshot("default", [devices], [CLASS], list(claims), [template(count=count)], [], nodes=[node])
    found.quotas = list(quotas)
    return found


def pod(*claims: Json, amount: str | None = None, uid: str | None = "uid") -> Json:
    resources = {} if amount is None else {"resources": {"limits": {"example.com/gpu": amount}}}
    spec = {"containers": [{"name": "c", **resources}], "resourceClaims": list(claims)}
    return {"metadata": {"name": "train", "namespace": "default", **({"uid": uid} if uid else {})}, "spec": spec}


def problems(cluster: Snapshot, value: Json) -> list[str]:
    return [problem for need in pod_claims(cluster, value) for problem in need.problems]


@pytest.mark.parametrize(
    ("hard", "used", "needs", "printed"),
    [
        ("1500", "1k", 600, "allows 1500 of {key}, 1000 are used, and it needs 600"),
        ("1k", "500", 600, "allows 1000 of {key}, 500 are used, and it needs 600"),
        ("1k", "400", 600, None),
        ("2e3", "1.5k", 501, "allows 2000 of {key}, 1500 are used, and it needs 501"),
        ("0", "0", 1, "allows 0 of {key}, 0 are used, and it needs 1"),
        ("many", "0", 1, None),
    ],
)
def test_amounts_of_a_quota_are_quantities(hard: str, used: str, needs: int, printed: str | None) -> None:
    found = problems(snapshot(quota(DEVICES, hard, used), count=needs), pod(OWN))
    assert found == ([] if printed is None else [f"quota gpus {printed.format(key=DEVICES)}"])


@pytest.mark.parametrize("key", [EXTENDED, IMPLICIT])
def test_a_quota_of_an_extended_resource_counts_claims_of_its_class(key: str) -> None:
    assert problems(snapshot(quota(key, "3", "1"), count=2), pod(OWN)) == []
    code = explain_pod(snapshot(quota(key, "2", "1"), count=2), pod(OWN))
    assert code["fits"] is False
    assert code["summary"] == f"claim own: quota gpus allows 2 of {key}, 1 are used, and it needs 2"


def test_a_quota_of_an_unknown_extended_resource_does_not_count_claims() -> None:
    cluster = snapshot(quota(IMPLICIT, "0"), quota(EXTENDED, "0"))
    cluster.classes = [{"metadata": {"name": "any"}}]
    assert problems(cluster, pod(OWN)) == [f"quota gpus allows 0 of {IMPLICIT}, 0 are used, and it needs 1"]
    cluster.classes = [{"metadata": {"name": "other"}}]
    assert problems(cluster, pod(OWN)) == []


def test_the_claim_of_a_pod_that_a_quota_counts_is_not_counted_twice() -> None:
    # The pod counts as two of the explicit resource; its claim, as two of the implicit one and two devices.
    asked = pod(amount="2")
    assert problems(snapshot(quota(EXTENDED, "2", "2")), asked) == []
    for key in (IMPLICIT, DEVICES):
        assert problems(snapshot(quota(key, "1")), asked) == [
            f"quota gpus allows 1 of {key}, 0 are used, and it needs 2"
        ]
    # A pod that does not exist is counted with its claim.
    for value in (EXTENDED, IMPLICIT, DEVICES):
        assert problems(snapshot(quota(value, "1")), pod(amount="2", uid=None))
        assert not problems(snapshot(quota(value, "2")), pod(amount="2", uid=None))


def test_a_quota_with_scopes_does_not_count_claims() -> None:
    terms = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}
    for spec in ({"scopes": ["NotTerminating"]}, {"scopeSelector": terms}):
        assert problems(snapshot(quota(DEVICES, "0", **spec)), pod(OWN)) == []
    assert problems(snapshot(quota(DEVICES, "0", scopeSelector={})), pod(OWN))


def test_the_claims_of_a_pod_are_counted_together() -> None:
    second = {**OWN, "name": "second"}
    cluster = snapshot(quota(DEVICES, "3", "2"))
    assert problems(cluster, pod(OWN)) == []
    message = f"quota gpus allows 3 of {DEVICES}, 2 are used, and the claims of the pod need 2"
    assert problems(cluster, pod(OWN, second)) == [message]


def test_a_further_copy_of_a_pod_whose_claims_exist_needs_quota() -> None:
    generated = {**claim(make_request(), name="train-own-x"), "status": {}}
    asked = {**pod(OWN), "status": {"resourceClaimStatuses": [{"name": "own", "resourceClaimName": "train-own-x"}]}}
    cluster = snapshot(quota(DEVICES, "1", "1"), claims=(generated,))
    assert problems(cluster, asked) == [], "this pod has its claim"
    found = capacity(cluster, copy_of_pod(cluster, asked))
    assert found["problems"] == [f"quota gpus allows 1 of {DEVICES}, 1 are used, and a further copy needs 1"]
    assert found["total"] == 0
    cluster.quotas = [quota(DEVICES, "2", "1")]
    assert capacity(cluster, copy_of_pod(cluster, asked))["total"] == 8


def test_a_further_copy_of_a_pod_with_an_extended_resource_needs_quota() -> None:
    cluster = snapshot(quota(EXTENDED, "3", "2"))
    assert problems(cluster, pod(amount="2")) == []
    (problem,) = copy_of_pod(cluster, pod(amount="2")).problems
    assert f"quota gpus allows 3 of {EXTENDED}, 2 are used" in problem


def test_a_further_claim_of_a_template_needs_quota() -> None:
    asked = claim(make_request(count=2), name="one")
    allowed = snapshot(quota(DEVICES, "4", "1"))
    assert copy_of_claims(allowed, [asked], "template").problems == []
    problem = f"quota gpus allows 4 of {DEVICES}, 1 are used, and a further copy needs 4"
    assert copy_of_claims(allowed, [asked, asked]).problems == [problem]
    counted = snapshot(quota("count/resourceclaims.resource.k8s.io", "1", "1"))
    assert "count/resourceclaims" in copy_of_claims(counted, [asked], "template").problems[0]


def test_admin_access_of_a_further_claim_needs_the_label_of_the_namespace() -> None:
    cluster = snapshot()
    cluster.namespace_object = {"metadata": {"name": "default"}}
    (problem,) = copy_of_claims(cluster, [claim(make_request(adminAccess=True))]).problems
    assert "has no label resource.kubernetes.io/admin-access=true" in problem


def test_pods_that_are_still_to_be_created_count_with_their_extended_resources() -> None:
    cluster = snapshot(quota(EXTENDED, "5"))
    sets = [PodSet("", pod(amount="2", uid=None), 3)]
    gang = gang_of_workload(cluster, "Job default/train", "train", sets)
    assert gang.lacks_quota == [f"quota gpus allows 5 of {EXTENDED}, 0 are used, and the pods need 6"]


def test_a_claim_that_is_deleted_for_a_query_uses_no_quota() -> None:
    held = {**claim(make_request(count=2), name="held"), "status": {}}
    asked = claim(make_request(count=2), name="one")
    cluster = snapshot(quota(DEVICES, "3", "3"), quota(EXTENDED, "2", "2"), claims=(held,))

    def refused(change: str) -> list[str]:
        changed = apply_changes(cluster, [parse_change(change)], lambda kind, names: ([], {}))
        return copy_of_claims(changed, [asked]).problems

    assert len(refused("uncordon=n1")) == 2
    assert refused("delete-claim=default/held") == []
    # The claim for extended resources of a pod ends, and the pod still counts.
    owner = {"kind": "Pod", "name": "train"}
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"}
    held["metadata"] |= {"ownerReferences": [owner], "annotations": annotations}
    cluster.pods = [pod(amount="2")]
    (problem,) = refused("delete-claim=default/held")
    assert f"quota gpus allows 2 of {EXTENDED}, 2 are used" in problem
    # Quotas are those of the namespace.
    held["metadata"]["namespace"] = "other"
    assert len(refused("delete-claim=other/held")) == 2
