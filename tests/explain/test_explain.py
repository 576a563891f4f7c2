"""What an explanation says of each kind of obstacle, and that it never contradicts the allocation."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.cases import (
    DRIVER,
    ask,
    claim,
    device,
    held,
    memory,
    model,
    partitionable,
    question,
    shared,
    slice_of,
    want,
)
from allocator.edges import CASES
from allocator.scenarios import scenario
from dra_agent.allocator import allocate
from dra_agent.errors import PermanentError
from dra_agent.explain import explain


def first_request(asked: dict[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = explain(**asked)["claims"][0]["requests"][0]
    return request


def rejections(asked: dict[str, Any], name: str) -> list[dict[str, Any]]:
    devices = {entry["device"]: entry for entry in first_request(asked)["devices"]}
    found: list[dict[str, Any]] = devices[name]["rejections"]
    return found


def test_a_false_selector_is_named_with_its_text() -> None:
    asked = question([slice_of(device("a", {"model": "A"}))], [claim(ask(expression=model("B")))])
    (rejection,) = rejections(asked, "a")
    assert rejection["kind"] == "selector"
    assert (rejection["owner"], rejection["index"], rejection["error"]) == ("request", 0, None)
    assert rejection["expression"] == model("B")
    assert first_request(asked)["summary"].startswith(
        "none of 1 device matches: it is rejected by selector 0 of request"
    )


def test_a_selector_that_fails_is_an_error_of_everything() -> None:
    asked = question([slice_of(device("a"))], [claim(ask(expression=model("B")))])
    explanation = explain(**asked)
    assert 'no such key "model"' in explanation["error"]
    assert not explanation["fits"]
    assert 'no such key "model"' in rejections(asked, "a")[0]["error"]


def test_a_holder_is_named() -> None:
    devices = [device(name, {"model": "A" if name in "ab" else "B"}) for name in "abcdefgh"]
    holder = held("x", {"device": "a"}, {"device": "b"})
    asked = question([slice_of(*devices)], [claim(ask(expression=model("A")))], [holder])
    (rejection,) = rejections(asked, "a")
    assert rejection["kind"] == "in_use"
    assert [entry["claim"] for entry in rejection["holders"]] == ["default/x"]
    assert first_request(asked)["summary"] == "2 of 8 devices match; both are held by claim default/x"
    assert explain(**asked)["claims"][0]["summary"] == (
        "request main: 2 of 8 devices match; both are held by claim default/x"
    )


def test_a_taint_is_named() -> None:
    tainted = device("a", taints=[{"key": "preempted", "effect": "NoExecute"}])
    asked = question([slice_of(tainted)], [claim(ask())])
    (rejection,) = rejections(asked, "a")
    assert (rejection["kind"], rejection["key"], rejection["effect"]) == ("taint", "preempted", "NoExecute")
    assert first_request(asked)["summary"] == "1 of 1 device matches; it is tainted with preempted:NoExecute"


def test_a_counter_is_named_with_what_is_left_and_who_consumes() -> None:
    size = f'device.attributes["{DRIVER}"].size == 4'
    asked = question(partitionable(4), [claim(ask(expression=size))], [held("x", {"device": "half-0"})])
    (rejection,) = rejections(asked, "whole")
    assert (rejection["kind"], rejection["set"], rejection["counter"]) == ("counter", "card", "slots")
    assert (rejection["needed"], rejection["free"]) == ("4", "2")
    assert rejection["consumers"] == [{"device": "half-0", "claim": "default/x"}]


def test_capacity_is_named_with_what_is_left() -> None:
    share = {
        "device": "shared",
        "shareID": "00000000-0000-4000-8000-000000000001",
        "consumedCapacity": {"memory": "7Gi"},
    }
    asked = question([slice_of(shared())], [claim(ask(capacity=memory("4Gi")))], [held("h", share)])
    (rejection,) = rejections(asked, "shared")
    assert (rejection["kind"], rejection["problem"]) == ("capacity", "exceeded")
    assert (rejection["needed"], rejection["free"]) == ("4Gi", "3Gi")
    assert rejection["message"] == "capacity memory has 3Gi left, 4Gi are needed; claim default/h has 7Gi"


def test_a_policy_that_does_not_offer_the_amount_is_named() -> None:
    policy: dict[str, Any] = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "2Gi"}}
    asked = question([slice_of(shared(**policy))], [claim(ask(capacity=memory("3Gi")))])
    (rejection,) = rejections(asked, "shared")
    assert (rejection["problem"], rejection["needed"]) == ("policy", "3Gi")


def test_devices_of_one_name_in_two_pools_are_counted_one_by_one() -> None:
    slices = [slice_of(device("d0", {"numa": 0}), name=f"s{pool}", pool=pool) for pool in ("a", "b")]
    constraint = {"matchAttribute": f"{DRIVER}/numa"}
    (report,) = explain(**question(slices, [claim(ask(count=2), constraints=[constraint])]))["claims"][0]["constraints"]
    assert [(entry["value"], entry["devices"]) for entry in report["values"]] == [
        ("0", [f"{DRIVER}/a/d0", f"{DRIVER}/b/d0"])
    ]


def test_a_constraint_names_the_values_that_are_too_few() -> None:
    devices = [device(f"d{i}", {"numa": i}) for i in range(3)]
    constraint = {"matchAttribute": f"{DRIVER}/numa"}
    asked = question([slice_of(*devices)], [claim(ask(count=2), constraints=[constraint])])
    (rejection,) = rejections(asked, "d0")
    assert (rejection["kind"], rejection["value"]) == ("constraint", "0")
    (report,) = explain(**asked)["claims"][0]["constraints"]
    assert [(entry["value"], entry["devices"]) for entry in report["values"]] == [
        ("0", ["d0"]),
        ("1", ["d1"]),
        ("2", ["d2"]),
    ]
    assert report["problem"] is not None


def test_devices_for_other_nodes_and_incomplete_pools_are_named() -> None:
    elsewhere = slice_of(device("a", nodeName="n2"), device("b", nodeName="n1"), perDeviceNodeSelection=True)
    partial = slice_of(device("c"), pool="q", name="s1", count=2)
    asked = question([elsewhere, partial], [claim(ask(count=2))])
    assert [entry["kind"] for entry in rejections(asked, "a")] == ["node"]
    assert [entry["kind"] for entry in rejections(asked, "c")] == ["pool"]
    pools = explain(**asked)["pools"]
    assert [entry["problem"] for entry in pools] == [None, "the pool is incomplete: 1 of 2 slices are published"]


def test_each_alternative_is_explained() -> None:
    alternatives = [{"name": "big", **want(3)}, {"name": "small", **want(1)}]
    asked = question([slice_of(device("a"))], [claim({"name": "main", "firstAvailable": alternatives})])
    explanation = explain(**asked)
    assert explanation["fits"]
    assert [entry["request"] for entry in explanation["claims"][0]["requests"]] == ["main/big", "main/small"]
    assert [entry["devices"][0]["allocated"] for entry in explanation["claims"][0]["requests"]] == [False, True]


def test_requests_that_do_not_fit_together_are_told_apart() -> None:
    asked = question([slice_of(device("a"))], [claim(ask("one"), ask("two"))])
    explanation = explain(**asked)
    assert not explanation["fits"]
    assert "request two does not fit together with the earlier requests" in explanation["claims"][0]["summary"]


def test_an_unreadable_object_is_refused() -> None:
    asked = question([slice_of(device("a", capacity={"memory": {"value": "many"}}))], [claim(ask())])
    with pytest.raises(PermanentError, match="many"):
        explain(**asked)


def lacks(request: dict[str, Any]) -> bool:
    return bool(request["available"] < request["needed"] or (request["all"] and not request["matching"]))


def check_agreement(asked: dict[str, Any], name: object) -> None:
    answer = allocate(**asked, share_id_seed=1, deadline=0.3)
    if "no response within" in (answer["error"] or ""):
        return
    explanation = explain(**asked)
    assert explanation["fits"] == answer["allocated"], name
    assert (explanation["error"] is None) == (answer["error"] is None), name
    assert explanation["summary"], name
    for report in explanation["claims"]:
        assert report["summary"], name
        for request in report["requests"]:
            assert request["summary"], name
            for entry in request["devices"]:
                assert entry["accepted"] == (not entry["rejections"]), name
                assert entry["accepted"] or not entry["allocated"], f"{name}: {entry}"
        if explanation["fits"]:
            assert not any(lacks(request) for request in report["requests"] if not request["alternative"]), name
            assert not any(constraint["problem"] for constraint in report["constraints"]), name


@pytest.mark.parametrize("name", CASES)
def test_explanations_agree_with_allocations(name: str) -> None:
    check_agreement(CASES[name](), name)


def test_explanations_agree_with_allocations_on_random_questions() -> None:
    for seed in range(3_000_000, 3_000_600):
        asked = scenario(seed)
        if sum(len(entry["spec"].get("devices", [])) for entry in asked["slices"]) <= 20:
            check_agreement(asked, seed)
