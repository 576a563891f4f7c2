"""The explanation of each kind of rejection; it never contradicts the allocation."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from allocator.cases import (
    DRIVER,
    allocated_claim,
    claim,
    device,
    make_exact,
    make_query,
    make_request,
    memory,
    model,
    partitionable,
    shared,
    slice_of,
)
from allocator.edges import CASES
from allocator.question import allocate
from allocator.scenarios import scenario
from dra_agent.errors import PermanentError
from dra_agent.explain import explain, relevant_slices
from eventually import DEADLINE_S


def first_request(query: dict[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = explain(**query)["claims"][0]["requests"][0]
    return request


def rejections(query: dict[str, Any], name: str) -> list[dict[str, Any]]:
    devices = {entry["device"]: entry for entry in first_request(query)["devices"]}
    found: list[dict[str, Any]] = devices[name]["rejections"]
    return found


def test_rejecting_selector_is_named_with_its_text() -> None:
    query = make_query([slice_of(device("a", {"model": "A"}))], [claim(make_request(expression=model("B")))])
    (rejection,) = rejections(query, "a")
    assert rejection["kind"] == "selector"
    assert (rejection["owner"], rejection["index"], rejection["error"]) == ("request", 0, None)
    assert rejection["expression"] == model("B")
    assert first_request(query)["summary"].startswith(
        "none of 1 device matches: it is rejected by selector 0 of request"
    )


def test_failing_selector_is_an_error_of_the_whole_query() -> None:
    query = make_query([slice_of(device("a"))], [claim(make_request(expression=model("B")))])
    explanation = explain(**query)
    assert 'no such key "model"' in explanation["error"]
    assert not explanation["fits"]
    assert 'no such key "model"' in rejections(query, "a")[0]["error"]


def test_holder_is_named() -> None:
    devices = [device(name, {"model": "A" if name in "ab" else "B"}) for name in "abcdefgh"]
    holder = allocated_claim("x", {"device": "a"}, {"device": "b"})
    query = make_query([slice_of(*devices)], [claim(make_request(expression=model("A")))], [holder])
    (rejection,) = rejections(query, "a")
    assert rejection["kind"] == "in_use"
    assert [entry["claim"] for entry in rejection["holders"]] == ["default/x"]
    assert first_request(query)["summary"] == "2 of 8 devices match; both are held by claim default/x"
    assert explain(**query)["claims"][0]["summary"] == (
        "request main: 2 of 8 devices match; both are held by claim default/x"
    )


def test_taint_is_named() -> None:
    tainted = device("a", taints=[{"key": "preempted", "effect": "NoExecute"}])
    query = make_query([slice_of(tainted)], [claim(make_request())])
    (rejection,) = rejections(query, "a")
    assert (rejection["kind"], rejection["key"], rejection["effect"]) == ("taint", "preempted", "NoExecute")
    assert first_request(query)["summary"] == "1 of 1 device matches; it is tainted with preempted:NoExecute"


def test_counter_is_named_with_remainder_and_consumers() -> None:
    size = f'device.attributes["{DRIVER}"].size == 4'
    query = make_query(
        partitionable(4), [claim(make_request(expression=size))], [allocated_claim("x", {"device": "half-0"})]
    )
    (rejection,) = rejections(query, "whole")
    assert (rejection["kind"], rejection["set"], rejection["counter"]) == ("counter", "card", "slots")
    assert (rejection["needed"], rejection["free"]) == ("4", "2")
    assert rejection["consumers"] == [{"device": "half-0", "claim": "default/x"}]


def test_capacity_is_named_with_remainder() -> None:
    share = {
        "device": "shared",
        "shareID": "00000000-0000-4000-8000-000000000001",
        "consumedCapacity": {"memory": "7Gi"},
    }
    query = make_query(
        [slice_of(shared())], [claim(make_request(capacity=memory("4Gi")))], [allocated_claim("h", share)]
    )
    (rejection,) = rejections(query, "shared")
    assert (rejection["kind"], rejection["problem"]) == ("capacity", "exceeded")
    assert (rejection["needed"], rejection["free"]) == ("4Gi", "3Gi")
    assert rejection["message"] == "capacity memory has 3Gi left, 4Gi are needed; claim default/h has 7Gi"


def test_request_policy_that_excludes_the_amount_is_named() -> None:
    policy: dict[str, Any] = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "2Gi"}}
    query = make_query([slice_of(shared(**policy))], [claim(make_request(capacity=memory("3Gi")))])
    (rejection,) = rejections(query, "shared")
    assert (rejection["problem"], rejection["needed"]) == ("policy", "3Gi")


def test_devices_with_one_name_in_two_pools_are_distinct() -> None:
    slices = [slice_of(device("d0", {"numa": 0}), name=f"s{pool}", pool=pool) for pool in ("a", "b")]
    constraint = {"matchAttribute": f"{DRIVER}/numa"}
    (report,) = explain(**make_query(slices, [claim(make_request(count=2), constraints=[constraint])]))["claims"][0][
        "constraints"
    ]
    assert [(entry["value"], entry["devices"]) for entry in report["values"]] == [
        ("0", [f"{DRIVER}/a/d0", f"{DRIVER}/b/d0"])
    ]


def test_constraint_names_the_values_with_too_few_devices() -> None:
    devices = [device(f"d{i}", {"numa": i}) for i in range(3)]
    constraint = {"matchAttribute": f"{DRIVER}/numa"}
    query = make_query([slice_of(*devices)], [claim(make_request(count=2), constraints=[constraint])])
    (rejection,) = rejections(query, "d0")
    assert (rejection["kind"], rejection["value"]) == ("constraint", "0")
    (report,) = explain(**query)["claims"][0]["constraints"]
    assert [(entry["value"], entry["devices"]) for entry in report["values"]] == [
        ("0", ["d0"]),
        ("1", ["d1"]),
        ("2", ["d2"]),
    ]
    assert report["problem"] is not None


def test_devices_of_other_nodes_and_incomplete_pools_are_named() -> None:
    elsewhere = slice_of(device("a", nodeName="n2"), device("b", nodeName="n1"), perDeviceNodeSelection=True)
    partial = slice_of(device("c"), pool="q", name="s1", count=2)
    query = make_query([elsewhere, partial], [claim(make_request(count=2))])
    assert [entry["kind"] for entry in rejections(query, "a")] == ["node"]
    assert [entry["kind"] for entry in rejections(query, "c")] == ["pool"]
    pools = explain(**query)["pools"]
    assert [entry["problem"] for entry in pools] == [None, "the pool is incomplete: 1 of 2 slices are published"]


def test_each_alternative_is_explained() -> None:
    alternatives = [{"name": "big", **make_exact(3)}, {"name": "small", **make_exact(1)}]
    query = make_query([slice_of(device("a"))], [claim({"name": "main", "firstAvailable": alternatives})])
    explanation = explain(**query)
    assert explanation["fits"]
    assert [entry["request"] for entry in explanation["claims"][0]["requests"]] == ["main/big", "main/small"]
    assert [entry["devices"][0]["allocated"] for entry in explanation["claims"][0]["requests"]] == [False, True]


def test_requests_that_do_not_fit_together_are_distinguished() -> None:
    query = make_query([slice_of(device("a"))], [claim(make_request("one"), make_request("two"))])
    explanation = explain(**query)
    assert not explanation["fits"]
    assert "request two does not fit together with the earlier requests" in explanation["claims"][0]["summary"]


def with_lists(count: int, *, of_device: bool) -> dict[str, Any]:
    """Return a query for devices with 32 values each, which are the device's own or those of all devices."""
    devices = [
        {"name": f"d{n}", "attributes": {"rails": {"strings": [f"{n if of_device else 'all'}-{m}" for m in range(32)]}}}
        for n in range(count)
    ]
    slices = [slice_of(*devices[i : i + 64], name=f"s{i}", pool=f"p{i}") for i in range(0, count, 64)]
    constraints = [{"matchAttribute": f"{DRIVER}/rails"}]
    return make_query(slices, [claim(make_request(count=2), constraints=constraints)], gates=["DRAListTypeAttributes"])


def with_counters(count: int) -> dict[str, Any]:
    """Return a query for devices of one pool with counters, with several requests."""
    part = [{"counterSet": "card", "counters": {"slots": {"value": "1"}}}]
    devices = [device(f"d{n}", consumesCounters=part) for n in range(count)]
    total = count // 64 + 1
    slices = [slice_of(*devices[i : i + 64], name=f"s{i}", count=total) for i in range(0, count, 64)]
    counters = [{"name": "card", "counters": {"slots": {"value": "32"}}}]
    slices.append(slice_of(name="counters", count=total, sharedCounters=counters))
    held = [allocated_claim("h", {"device": "d0"})]
    return make_query(slices, [claim(*(make_request(f"r{n}") for n in range(16)))], held)


@pytest.mark.parametrize(
    "build",
    [
        partial(with_lists, 1024, of_device=True),
        partial(with_lists, 4096, of_device=False),
        partial(with_counters, 4096),
    ],
    ids=["different values", "equal values", "counters"],
)
def test_an_explanation_compares_no_device_with_each_other_one(build: Callable[[], dict[str, Any]]) -> None:
    """Such a comparison takes many times the CPU time."""
    query = build()
    began = time.thread_time()
    explanation = explain(**query, deadline=600)
    assert time.thread_time() - began < 10
    assert explanation["error"] is None
    (report,) = explanation["claims"]
    assert "is not explained completely" not in report["summary"]
    devices = sum(len(entry["spec"].get("devices", [])) for entry in query["slices"])
    assert all(len(request["devices"]) == devices for request in report["requests"])


def test_unreadable_object_is_refused() -> None:
    query = make_query([slice_of(device("a", capacity={"memory": {"value": "many"}}))], [claim(make_request())])
    with pytest.raises(PermanentError, match="many"):
        explain(**query)


def has_too_few_devices(request: dict[str, Any]) -> bool:
    return bool(request["available"] < request["needed"] or (request["all"] and not request["matching"]))


def assert_agreement(query: dict[str, Any], name: object) -> None:
    result = allocate(**query, share_id_seed=1, deadline=DEADLINE_S)
    explanation = explain(**query, deadline=DEADLINE_S)
    assert explanation["fits"] == result["allocated"], name
    assert (explanation["error"] is None) == (result["error"] is None), name
    assert explanation["summary"], name
    for report in explanation["claims"]:
        assert report["summary"], name
        for request in report["requests"]:
            assert request["summary"], name
            for entry in request["devices"]:
                assert entry["accepted"] == (not entry["rejections"]), name
                assert entry["accepted"] or not entry["allocated"], f"{name}: {entry}"
        if explanation["fits"]:
            assert not any(
                has_too_few_devices(request) for request in report["requests"] if not request["alternative"]
            ), name
            assert not any(constraint["problem"] for constraint in report["constraints"]), name


@pytest.mark.parametrize("name", CASES)
def test_explanations_agree_with_allocations(name: str) -> None:
    assert_agreement(CASES[name](), name)


def test_explanations_agree_with_allocations_of_random_queries() -> None:
    for seed in range(3_000_000, 3_000_600):
        query = scenario(seed)
        if sum(len(entry["spec"].get("devices", [])) for entry in query["slices"]) <= 20:
            assert_agreement(query, seed)


def test_slices_of_other_nodes_are_not_read() -> None:
    """Those of a pool of the node are: whether the pool is complete depends on all of its slices."""
    own = slice_of(device("a"), count=2)
    rest = slice_of(device("b"), name="s1", count=2, nodeName="other")
    foreign = slice_of(device("a"), name="s2", pool="q", nodeName="other")
    query = make_query([foreign, rest, own], [claim(make_request())])
    assert relevant_slices(query["slices"], "n1") == [rest, own]
    assert explain(**query)["fits"]
    broken = {"metadata": {}, "spec": {**foreign["spec"], "devices": "many"}}
    assert explain(**{**query, "slices": [broken, rest, own]})["fits"]
