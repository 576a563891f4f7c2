"""Allocator queries with one purpose each: the situations in which an allocator is most often wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]

DRIVER = "gpu.example.com"
NODE = "n1"
CASES: dict[str, Callable[[], Json]] = {}


def case(build: Callable[[], Json]) -> Callable[[], Json]:
    CASES[build.__name__.replace("_", " ")] = build
    return build


def device(name: str, /, attributes: Json | None = None, **fields: Any) -> Json:
    typed = {
        key: {"bool": value}
        if isinstance(value, bool)
        else {"int": value}
        if isinstance(value, int)
        else {"string": value}
        for key, value in (attributes or {}).items()
    }
    return {"name": name, **({"attributes": typed} if typed else {}), **fields}


def slice_of(*devices: Json, name: str = "slice-0", pool: str = "p", count: int = 1, **spec: Any) -> Json:
    reach = {} if {"allNodes", "nodeSelector", "perDeviceNodeSelection"} & spec.keys() else {"nodeName": NODE}
    return {
        "metadata": {"name": name},
        "spec": {
            "driver": DRIVER,
            "pool": {"name": pool, "generation": 1, "resourceSliceCount": count},
            **reach,
            **({"devices": list(devices)} if devices else {}),
            **spec,
        },
    }


def make_request(name: str = "main", count: int = 1, expression: str | None = None, **fields: Any) -> Json:
    return {"name": name, "exactly": make_exact(count, expression, **fields)}


def make_exact(count: int = 1, expression: str | None = None, **fields: Any) -> Json:
    selectors = {"selectors": [{"cel": {"expression": expression}}]} if expression else {}
    return {"deviceClassName": "any", "count": count, **selectors, **fields}


def claim(*requests: Json, name: str = "claim", **devices: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }


def allocated_claim(name: str, *results: Json) -> Json:
    results_ = [{"request": "main", "driver": DRIVER, "pool": "p", **result} for result in results]
    return {**claim(name=name), "status": {"allocation": {"devices": {"results": results_}}}}


def make_query(slices: list[Json], claims: list[Json], allocated: list[Json] | None = None, **fields: Any) -> Json:
    classes = [{"metadata": {"name": "any"}, "spec": {}}, *fields.pop("classes", [])]
    return {
        "node": NODE,
        "classes": classes,
        "slices": slices,
        "claims": claims,
        "allocated": allocated or [],
        **fields,
    }


def model(name: str) -> str:
    return f'device.attributes["{DRIVER}"].model == "{name}"'


def partitionable(slots: int = 2) -> list[Json]:
    """Return one card of `slots` slots, which can be used as a whole, as halves and as single slots."""

    def part(name: str, size: int) -> Json:
        return device(
            name,
            {"size": size},
            consumesCounters=[{"counterSet": "card", "counters": {"slots": {"value": str(size)}}}],
        )

    devices = [part("whole", slots), *(part(f"half-{i}", slots // 2) for i in range(2))]
    devices += [part(f"single-{i}", 1) for i in range(slots)]
    counters = slice_of(
        name="counters",
        count=2,
        sharedCounters=[{"name": "card", "counters": {"slots": {"value": str(slots)}}}],
    )
    return [slice_of(*devices, count=2), counters]


def shared(value: str = "10Gi", **policy: Any) -> Json:
    memory: Json = {"value": value, **({"requestPolicy": policy} if policy else {})}
    return device("shared", allowMultipleAllocations=True, capacity={"memory": memory})


def memory(amount: str) -> Json:
    return {"requests": {"memory": amount}}


@case
def the_first_device_in_the_order_of_slices_is_taken() -> Json:
    slices = [slice_of(device("b"), name="z", count=2), slice_of(device("a"), name="y", count=2)]
    return make_query(slices, [claim(make_request())])


@case
def pools_with_binding_conditions_come_last() -> Json:
    bound = device("d", bindingConditions=["ready"], bindingFailureConditions=["failed"])
    return make_query(
        [slice_of(bound, pool="a"), slice_of(device("d"), pool="b", name="s1")],
        [claim(make_request(), make_request("other"))],
    )


@case
def a_constraint_leads_back_to_the_first_choice() -> Json:
    devices = [device(f"d{i}", {"numa": numa}) for i, numa in enumerate([0, 1, 1])]
    constraint = {"matchAttribute": f"{DRIVER}/numa"}
    return make_query([slice_of(*devices)], [claim(make_request(count=2), constraints=[constraint])])


@case
def a_second_claim_leads_back_into_the_first() -> Json:
    devices = [device("only", {"model": "A", "spare": True}), device("other", {"model": "B", "spare": True})]
    claims = [claim(make_request(), name="c1"), claim(make_request(expression=model("A")), name="c2")]
    return make_query([slice_of(*devices)], claims)


@case
def distinct_attributes_spread_the_devices() -> Json:
    devices = [device(f"d{i}", {"root": root}) for i, root in enumerate(["a", "a", "b", "b"])]
    constraint = {"distinctAttribute": f"{DRIVER}/root", "requests": ["main"]}
    return make_query(
        [slice_of(*devices)], [claim(make_request(count=2), make_request("rest"), constraints=[constraint])]
    )


@case
def the_whole_card_goes_where_nothing_of_it_is_used() -> Json:
    return make_query(partitionable(4), [claim(make_request(expression=f'device.attributes["{DRIVER}"].size == 4'))])


@case
def a_used_half_leaves_the_other() -> Json:
    size = f'device.attributes["{DRIVER}"].size >= 2'
    return make_query(
        partitionable(4), [claim(make_request(expression=size))], [allocated_claim("h", {"device": "half-0"})]
    )


@case
def two_halves_and_a_single_slot_do_not_fit() -> Json:
    requests = [make_request("a", 2, f'device.attributes["{DRIVER}"].size == 2'), make_request("b")]
    return make_query(partitionable(4), [claim(*requests)])


@case
def a_card_that_is_overdrawn_gives_nothing() -> Json:
    return make_query(
        partitionable(2), [claim(make_request())], [allocated_claim("h", {"device": "whole"}, {"device": "single-0"})]
    )


@case
def shares_fill_a_device_until_it_is_full() -> Json:
    requests = [make_request(f"r{i}", capacity=memory("4Gi")) for i in range(3)]
    return make_query([slice_of(shared(), device("own"))], [claim(*requests[:2]), claim(requests[2], name="c2")])


@case
def shares_of_others_count() -> Json:
    share = {
        "device": "shared",
        "shareID": "00000000-0000-4000-8000-000000000001",
        "consumedCapacity": {"memory": "7Gi"},
    }
    return make_query(
        [slice_of(shared())], [claim(make_request(capacity=memory("4Gi")))], [allocated_claim("h", share)]
    )


@case
def an_amount_is_rounded_up_to_the_next_step() -> Json:
    policy: Json = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    return make_query([slice_of(shared(**policy))], [claim(make_request(capacity=memory("2500Mi")))])


@case
def an_amount_is_rounded_up_to_the_next_value() -> Json:
    policy: Json = {"default": "2Gi", "validValues": ["2Gi", "4Gi"]}
    return make_query(
        [slice_of(shared(**policy))], [claim(make_request("a", capacity=memory("3Gi")), make_request("b"))]
    )


@case
def an_amount_between_thousandths_is_rounded_up() -> Json:
    policy: Json = {"default": "0.5", "validRange": {"min": "0.5", "step": "0.25"}}
    return make_query(
        [slice_of(shared("2", **policy))], [claim(make_request("a", capacity=memory("0.6")), make_request("b"))]
    )


@case
def more_than_the_range_allows_does_not_fit() -> Json:
    policy: Json = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "2Gi"}}
    return make_query([slice_of(shared(**policy))], [claim(make_request(capacity=memory("3Gi")))])


@case
def a_share_without_an_amount_takes_everything() -> Json:
    return make_query([slice_of(shared())], [claim(make_request("a"), make_request("b"))])


@case
def the_counters_of_a_shared_device_are_paid_once() -> Json:
    consumes = [{"counterSet": "card", "counters": {"slots": {"value": "2"}}}]
    free: Json = {"allowMultipleAllocations": True, "consumesCounters": consumes}
    counters = slice_of(name="c", count=2, sharedCounters=[{"name": "card", "counters": {"slots": {"value": "3"}}}])
    slices = [slice_of(device("shared", **free), device("single", consumesCounters=consumes), count=2), counters]
    return make_query(slices, [claim(make_request("a"), make_request("b"), make_request("c"))])


@case
def the_first_alternative_that_fits_is_taken() -> Json:
    alternatives = [
        {"name": "big", **make_exact(3)},
        {"name": "small", **make_exact(2)},
        {"name": "tiny", **make_exact(1)},
    ]
    config = [{"requests": ["main/small"], "opaque": {"driver": DRIVER, "parameters": {"x": 1}}}]
    config += [{"requests": ["main/big"], "opaque": {"driver": DRIVER, "parameters": {"x": 2}}}]
    requests = [{"name": "main", "firstAvailable": alternatives}]
    return make_query([slice_of(device("a"), device("b"))], [claim(*requests, config=config)])


@case
def an_alternative_gives_way_to_a_later_claim() -> Json:
    first = {"name": "main", "firstAvailable": [{"name": "two", **make_exact(2)}, {"name": "one", **make_exact(1)}]}
    return make_query([slice_of(device("a"), device("b"))], [claim(first, name="c1"), claim(make_request(), name="c2")])


@case
def alternatives_that_exceed_the_limit_are_an_error_of_the_first_claim() -> Json:
    devices = [device(f"d{i}") for i in range(40)]
    alternatives = [{"name": "many", **make_exact(20)}, {"name": "less", **make_exact(15)}]
    return make_query(
        [slice_of(*devices)],
        [claim(make_request("a", 14), {"name": "b", "firstAvailable": alternatives}, make_request("c", 4))],
    )


@case
def all_devices_are_those_that_match() -> Json:
    devices = [device("a", {"model": "A"}), device("b", {"model": "B"}), device("c", {"model": "A"})]
    return make_query([slice_of(*devices)], [claim(make_request(expression=model("A"), allocationMode="All"))])


@case
def all_devices_cannot_be_had_while_one_is_used() -> Json:
    requests = make_request(allocationMode="All")
    return make_query([slice_of(device("a"), device("b"))], [claim(requests)], [allocated_claim("h", {"device": "b"})])


@case
def all_devices_of_an_incomplete_pool_are_an_error() -> Json:
    return make_query([slice_of(device("a"), count=2)], [claim(make_request(allocationMode="All"))])


@case
def one_device_of_another_pool_is_taken_while_one_pool_is_incomplete() -> Json:
    return make_query(
        [slice_of(device("a"), count=2), slice_of(device("a"), pool="q", name="s1")], [claim(make_request())]
    )


@case
def an_invalid_pool_is_an_error_only_where_its_devices_are_missed() -> Json:
    twice = slice_of(device("a"), device("a"), pool="q", name="s1")
    return make_query([slice_of(device("a")), twice], [claim(make_request(), make_request("more"))])


@case
def a_newer_generation_elsewhere_makes_a_pool_obsolete() -> Json:
    newer = slice_of(device("b"), name="s1", allNodes=True)
    newer["spec"] = {**newer["spec"], "nodeSelector": None, "allNodes": None, "nodeName": "n2"}
    newer["spec"]["pool"] = {"name": "p", "generation": 2, "resourceSliceCount": 1}
    return make_query([slice_of(device("a"), count=2), newer], [claim(make_request())])


@case
def admin_access_takes_a_device_that_is_used() -> Json:
    return make_query(
        [slice_of(device("a"))], [claim(make_request(adminAccess=True))], [allocated_claim("h", {"device": "a"})]
    )


@case
def admin_access_of_others_excludes_no_device() -> Json:
    return make_query(
        [slice_of(device("a"))], [claim(make_request())], [allocated_claim("h", {"device": "a", "adminAccess": True})]
    )


@case
def a_taint_is_tolerated_by_its_key() -> Json:
    taint = {"key": "k", "value": "v", "effect": "NoExecute"}
    toleration = {"key": "k", "operator": "Exists", "tolerationSeconds": 30}
    devices = [device("a", taints=[taint]), device("b", taints=[{**taint, "effect": "None"}])]
    return make_query([slice_of(*devices)], [claim(make_request("x"), make_request("y", tolerations=[toleration]))])


@case
def an_attribute_that_is_missing_is_an_error_of_everything() -> Json:
    devices = [device("a"), device("b", {"model": "A"})]
    return make_query([slice_of(*devices)], [claim(make_request(expression=model("A")))])


@case
def a_selector_that_is_never_evaluated_is_not_an_error() -> Json:
    devices = [device("b", {"model": "A"}), device("c")]
    return make_query([slice_of(*devices)], [claim(make_request(expression=model("A")))])


@case
def devices_for_other_nodes_are_asked_too() -> Json:
    devices = [device("a", nodeName="n2"), device("b", {"model": "A"}, nodeName=NODE)]
    return make_query([slice_of(*devices, perDeviceNodeSelection=True)], [claim(make_request(expression=model("A")))])


@case
def the_selectors_of_all_devices_bound_the_claim() -> Json:
    def zone(*values: str) -> Json:
        expression = {"key": "zone", "operator": "In", "values": list(values)}
        return {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}

    slices = [
        slice_of(device("a"), nodeSelector=zone("x", "y")),
        slice_of(device("b"), pool="q", name="s1", nodeSelector=zone("y", "x", "y")),
        slice_of(device("c"), pool="r", name="s2", nodeSelector=zone("x")),
    ]
    node = {"metadata": {"name": NODE, "labels": {"zone": "x"}}}
    return {**make_query(slices, [claim(make_request(count=3))]), "node": node}


@case
def the_configuration_of_a_class_names_its_requests_once() -> Json:
    config = [{"opaque": {"driver": DRIVER, "parameters": {"from": "class"}}}]
    classes = [{"metadata": {"name": "set"}, "spec": {"config": config}}]
    requests = [make_request("a"), make_request("b", deviceClassName="set"), make_request("c", deviceClassName="set")]
    return make_query([slice_of(*(device(f"d{i}") for i in range(3)))], [claim(*requests)], classes=classes)


@case
def a_claim_that_is_allocated_keeps_its_devices() -> Json:
    return make_query(
        [slice_of(device("a"), device("b"))], [allocated_claim("h", {"device": "a"}), claim(make_request())]
    )


@case
def a_claim_that_is_allocated_elsewhere_does_not_fit() -> Json:
    elsewhere = allocated_claim("h", {"device": "a", "pool": "far"})
    field = {"key": "metadata.name", "operator": "In", "values": ["n2"]}
    elsewhere["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return make_query([slice_of(device("b"))], [elsewhere, claim(make_request())])
