"""More allocator queries with one purpose each: rules of the scheduler that random queries rarely reach."""

from __future__ import annotations

from functools import partial
from typing import Any

from allocator.cases import (
    CASES,
    DRIVER,
    NODE,
    Json,
    allocated_claim,
    case,
    claim,
    device,
    make_exact,
    make_query,
    make_request,
    memory,
    shared,
    slice_of,
)

__all__ = ["CASES"]

BROKEN_TERMS: dict[str, Json] = {
    "In without a value": {"matchExpressions": [{"key": "zone", "operator": "In"}]},
    "Exists with a value": {"matchExpressions": [{"key": "zone", "operator": "Exists", "values": ["x"]}]},
    "Gt with a word": {"matchExpressions": [{"key": "zone", "operator": "Gt", "values": ["x"]}]},
    "Lt with two numbers": {"matchExpressions": [{"key": "zone", "operator": "Lt", "values": ["1", "2"]}]},
    "a key that is none": {"matchExpressions": [{"key": "-zone", "operator": "Exists"}]},
    "a key with a bad prefix": {"matchExpressions": [{"key": "Up.com/zone", "operator": "Exists"}]},
    "a key with two slashes": {"matchExpressions": [{"key": "a.com/b/zone", "operator": "Exists"}]},
    "a value that is none": {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["x "]}]},
    "a value that is too long": {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["x" * 64]}]},
    "an unknown operator": {"matchExpressions": [{"key": "zone", "operator": "Like", "values": ["x"]}]},
    "a field with two values": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1", "n2"]}]},
    "a field with Exists": {"matchFields": [{"key": "metadata.name", "operator": "Exists"}]},
}
GOOD_TERMS: dict[str, Json] = {
    "an unknown field that is empty": {"matchFields": [{"key": "spec.x", "operator": "In", "values": [""]}]},
    "an unknown field that is not": {"matchFields": [{"key": "spec.x", "operator": "NotIn", "values": ["y"]}]},
    "an empty value": {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": [""]}]},
    "a number above": {"matchExpressions": [{"key": "tier", "operator": "Gt", "values": ["+1"]}]},
    "a label that is not a number": {"matchExpressions": [{"key": "name", "operator": "Lt", "values": ["5"]}]},
    "nothing": {},
}


def with_term(term: Json) -> Json:
    slices = [slice_of(device("a"), nodeSelector={"nodeSelectorTerms": [term]})]
    node = {"metadata": {"name": NODE, "labels": {"zone": "x", "tier": "2", "name": "word"}}}
    return {**make_query(slices, [claim(make_request())]), "node": node}


for name, term in {**BROKEN_TERMS, **GOOD_TERMS}.items():
    CASES[f"node selector: {name}"] = partial(with_term, term)


def with_amount(amount: str | None, value: str = "10Gi", **policy: Any) -> Json:
    fields: Json = {} if amount is None else {"capacity": memory(amount)}
    return make_query([slice_of(shared(value, **policy))], [claim(make_request(**fields))])


AMOUNTS: dict[str, tuple[str | None, Json]] = {
    "exactly a value": ("2Gi", {"default": "1Gi", "validValues": ["1Gi", "2Gi", "4Gi"]}),
    "above every value": ("5Gi", {"default": "1Gi", "validValues": ["1Gi", "2Gi", "4Gi"]}),
    "the default that is not valid": (None, {"default": "3Gi", "validValues": ["1Gi", "2Gi"]}),
    "the default as it is written": ("3Gi", {"default": "3Gi", "validValues": ["1Gi", "2Gi"]}),
    "the default otherwise written": ("3072Mi", {"default": "3Gi", "validValues": ["1Gi", "2Gi"]}),
    "negative": ("-1", {}),
    "below the range": ("1Mi", {"default": "1Gi", "validRange": {"min": "1Gi", "max": "4Gi"}}),
    "at the end of the range": ("4Gi", {"default": "1Gi", "validRange": {"min": "1Gi", "max": "4Gi"}}),
    "rounded beyond the range": (
        "3.5Gi",
        {"default": "1Gi", "validRange": {"min": "1Gi", "max": "3500Mi", "step": "1Gi"}},
    ),
    "a step that overflows": ("9.1E", {"validRange": {"min": "1", "step": "9E"}}),
    "beyond what int64 holds": ("10E", {"validRange": {"min": "1", "step": "9E"}}),
    "a negative min that overflows": ("9E", {"validRange": {"min": "-9E", "step": "3"}}),
    "a step of nothing": ("2Gi", {"validRange": {"min": "1Gi", "step": "0"}}),
    "a step of a nanounit": ("2Gi", {"validRange": {"min": "1Gi", "step": "1n"}}),
    "thousandths that overflow": ("9223372036854775", {"validRange": {"min": "1m", "step": "900E"}}),
    "an amount of nanounits in thousandths": ("1500000001n", {"validRange": {"min": "1", "step": "500m"}}),
    "a step without a min": ("2Gi", {"validRange": {"step": "1Gi"}}),
    "a range without a min": ("2Gi", {"validRange": {"max": "1Gi"}}),
    "a range and values": ("2Gi", {"validRange": {"max": "4Gi"}, "validValues": ["3Gi"]}),
    "a step that asks for more than there is": ("9.5Gi", {"validRange": {"min": "1Gi", "step": "5Gi"}}),
}
for name, (amount, policy) in AMOUNTS.items():
    CASES[f"amount: {name}"] = partial(with_amount, amount, **policy)


def counted(name: str, slots: int, **fields: Any) -> Json:
    return device(
        name, consumesCounters=[{"counterSet": "card", "counters": {"slots": {"value": str(slots)}}}], **fields
    )


def card(slots: int, count: int, **fields: Any) -> Json:
    sets = [{"name": "card", "counters": {"slots": {"value": str(slots)}}}]
    return slice_of(name="z-card", count=count, sharedCounters=sets, **fields)


@case
def an_obsolete_pool_is_not_counted_to_all() -> Json:
    newer = slice_of(device("b"), name="s1", nodeName="n2")
    newer["spec"]["pool"] = {"name": "p", "generation": 2, "resourceSliceCount": 1}
    slices = [slice_of(device("a"), count=2), newer, slice_of(device("c"), pool="q", name="s2")]
    return make_query(slices, [claim(make_request(allocationMode="All"))])


@case
def what_other_nodes_hold_consumes_counters() -> Json:
    slices = [
        slice_of(counted("a", 1), count=3),
        slice_of(counted("b", 1), name="s1", count=3, nodeName="n2"),
        card(1, 3),
    ]
    return make_query(slices, [claim(make_request())], [allocated_claim("h", {"device": "b"})])


@case
def counters_may_be_published_for_other_nodes() -> Json:
    slices = [slice_of(counted("a", 1), count=2), card(1, 2, nodeName="n2")]
    return make_query(slices, [claim(make_request())])


@case
def lists_are_never_distinct() -> Json:
    devices = [{"name": name, "attributes": {"links": {"ints": [i]}}} for i, name in enumerate("ab")]
    return make_query(
        [slice_of(*devices)], [claim(make_request(count=2), constraints=[{"distinctAttribute": f"{DRIVER}/links"}])]
    )


@case
def one_list_matches_itself_alone() -> Json:
    devices = [{"name": "a", "attributes": {"links": {"ints": [1]}}}]
    return make_query(
        [slice_of(*devices)], [claim(make_request(), constraints=[{"matchAttribute": f"{DRIVER}/links"}])]
    )


@case
def a_share_without_capacity_has_paid_the_counters() -> Json:
    slices = [slice_of(counted("a", 2, allowMultipleAllocations=True), count=2), card(2, 2)]
    share = {"device": "a", "shareID": "00000000-0000-4000-8000-000000000001"}
    return make_query(slices, [claim(make_request())], [allocated_claim("h", share)])


@case
def a_claim_may_have_32_devices() -> Json:
    return make_query(
        [slice_of(*(device(f"d{i}") for i in range(40)))], [claim(make_request("a", 20), make_request("b", 12))]
    )


@case
def a_claim_may_not_have_33_devices() -> Json:
    return make_query(
        [slice_of(*(device(f"d{i}") for i in range(40)))], [claim(make_request("a", 20), make_request("b", 13))]
    )


@case
def a_second_claim_that_is_too_large_does_not_fit() -> Json:
    devices = [device(f"d{i}") for i in range(64)]
    alternatives = [{"name": "many", **make_exact(20)}, {"name": "less", **make_exact(15)}]
    second = claim(
        make_request("a", 14), {"name": "b", "firstAvailable": alternatives}, make_request("c", 4), name="c2"
    )
    return make_query([slice_of(*devices)], [claim(make_request()), second])


@case
def a_toleration_without_an_operator_compares_values() -> Json:
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    requests = [
        make_request("a", tolerations=[{"key": "k"}]),
        make_request("b", tolerations=[{"key": "k", "value": "v"}]),
    ]
    return make_query([slice_of(device("x", taints=[taint]))], [claim(requests[1])])


@case
def a_claim_that_is_named_twice_counts_once() -> Json:
    share = {
        "device": "shared",
        "shareID": "00000000-0000-4000-8000-000000000001",
        "consumedCapacity": {"memory": "4Gi"},
    }
    holder = allocated_claim("h", share)
    return make_query([slice_of(shared())], [claim(make_request(capacity=memory("4Gi")))], [holder, holder])


@case
def slices_that_disagree_about_their_number_go_by_the_first() -> Json:
    slices = [slice_of(device("a"), name="z", count=2), slice_of(device("b"), name="a", count=5)]
    return make_query(slices, [claim(make_request())])


@case
def one_selector_with_two_terms_cannot_be_written_down() -> Json:
    terms = [{"matchExpressions": [{"key": "zone", "operator": operator}]} for operator in ("Exists", "DoesNotExist")]
    return make_query([slice_of(device("a"), nodeSelector={"nodeSelectorTerms": terms})], [claim(make_request())])


@case
def admin_access_pays_counters_again() -> Json:
    slices = [slice_of(counted("a", 1), count=2), card(1, 2)]
    return make_query(slices, [claim(make_request(adminAccess=True))], [allocated_claim("h", {"device": "a"})])


@case
def admin_access_does_not_give_one_claim_a_device_twice() -> Json:
    requests = [make_request("a", adminAccess=True), make_request("b", adminAccess=True)]
    return make_query([slice_of(device("x"))], [claim(*requests)])


@case
def admin_access_gives_two_claims_one_device() -> Json:
    claims = [claim(make_request(adminAccess=True), name=f"c{i}") for i in range(2)]
    return make_query([slice_of(device("x"))], claims)


@case
def a_device_that_is_watched_in_the_same_question_is_not_free() -> Json:
    claims = [claim(make_request(adminAccess=True), name="c0"), claim(make_request(), name="c1")]
    return make_query([slice_of(device("x"))], claims)


@case
def the_attribute_of_another_driver_is_not_found_by_its_short_name() -> Json:
    devices = [device("a", {"model": "A"}), device("b", {"model": "A"})]
    return make_query(
        [slice_of(*devices)], [claim(make_request(count=2), constraints=[{"matchAttribute": "other.com/model"}])]
    )


@case
def an_attribute_without_a_domain_is_found_as_it_is_published() -> Json:
    devices = [device("a", {"model": "A"}), device("b", {"model": "A"})]
    return make_query([slice_of(*devices)], [claim(make_request(count=2), constraints=[{"matchAttribute": "model"}])])


@case
def a_request_may_ask_for_no_capacity_that_a_device_lacks() -> Json:
    devices = [device("a"), device("b", capacity={"memory": {"value": "2Gi"}})]
    return make_query([slice_of(*devices)], [claim(make_request(capacity=memory("1Gi")))])


def claim_beyond_the_limit(name: str) -> Json:
    """Return a claim whose negative count hides from the first check that it requests 40 devices."""
    return claim(make_request("a", 20), make_request("b", -8), make_request("c", 20), name=name)


@case
def a_first_claim_that_turns_out_too_large_is_an_error() -> Json:
    return make_query([slice_of(*(device(f"d{i}") for i in range(64)))], [claim_beyond_the_limit("c1")])


@case
def a_later_claim_that_turns_out_too_large_does_not_fit() -> Json:
    return make_query(
        [slice_of(*(device(f"d{i}") for i in range(64)))], [claim(make_request()), claim_beyond_the_limit("c2")]
    )
