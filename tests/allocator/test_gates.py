"""Feature gates that are off by default: the agent's allocator, kube-scheduler's, and explanations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allocator import oracle
from allocator.cases import NODE, claim, device, make_query, make_request, slice_of
from allocator.gated import gated_scenario
from allocator.gated_cases import (
    GATED_CASES,
    LISTS,
    OPERATIONS,
    declaring,
    on_rails,
    rails,
    reserved,
)
from allocator.question import allocate, cluster_of, has_names
from dra_agent.cluster import Cluster
from dra_agent.errors import PermanentError
from dra_agent.explain import explain

Json = dict[str, Any]
BATCH = 250


def recorded() -> list[Json]:
    return [json.loads(line) for line in (Path(__file__).parent / "gated.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("first", range(3_000_000, 3_001_000, BATCH))
def test_random_queries_with_gates_match_the_scheduler(first: int, go_allocator: Path) -> None:
    seeds = range(first, first + BATCH)
    queries = {seed: query for seed in seeds if has_names(query := gated_scenario(seed))}
    for (seed, query), expected in zip(queries.items(), oracle.run(go_allocator, queries.values()), strict=True):
        if oracle.timed_out(expected):
            continue
        result = allocate(**query)
        assert oracle.comparable(result) == oracle.comparable(expected), (
            f"seed {seed}: the agent {result['error']}, the scheduler {expected['error']}\n{json.dumps(query)}"
        )


def test_recorded_results_still_match_the_scheduler(go_allocator: Path) -> None:
    lines = recorded()
    for line, result in zip(lines, oracle.run(go_allocator, [line["question"] for line in lines]), strict=True):
        assert oracle.comparable(result) == line["answer"], line["name"]


def test_results_match_the_recorded_ones() -> None:
    lines = recorded()
    assert [line["name"] for line in lines[: len(GATED_CASES)]] == list(GATED_CASES)
    assert sum(line["name"].startswith("a gate decides") for line in lines) >= 60
    for line in lines:
        assert oracle.comparable(allocate(**line["question"])) == line["answer"], line["name"]


def devices_of(answer: Any) -> list[str]:
    assert answer["error"] is None
    return [entry["device"] for result in answer["results"] for entry in result["devices"]["results"]]


@pytest.mark.parametrize(
    ("name", "with_gate", "without"),
    [
        ("a list leads back to the values before", ["a", "c", "d"], []),
        ("a single value is compared as a list of one", ["a", "b"], []),
        ("distinct lists have no value in common", ["a", "c"], []),
        ("skipped operations are copied", ["a"], ["a"]),
        ("skipped operations need a node that declares them", ["b"], ["a"]),
    ],
)
def test_a_rule_holds_only_while_its_gate_is_on(name: str, with_gate: list[str], without: list[str]) -> None:
    query = GATED_CASES[name]()
    assert devices_of(allocate(**query)) == with_gate
    assert devices_of(allocate(**{**query, "gates": []})) == without


def test_an_explanation_never_contradicts_the_allocation() -> None:
    for line in recorded():
        explanation = explain(**line["question"])
        assert explanation["fits"] == line["answer"]["allocated"], line["name"]
        assert (explanation["error"] is not None) == line["answer"]["error"], line["name"]
        for report in (one for entry in explanation["claims"] for one in entry["requests"]):
            contradicted = [one["device"] for one in report["devices"] if one["allocated"] and one["rejections"]]
            assert contradicted == [], line["name"]


# Compatibility groups, which are not evaluated.


@pytest.mark.parametrize("mode", [{}, {"allocationMode": "All"}], ids=["one", "all"])
def test_a_pool_with_compatibility_groups_is_not_evaluated(mode: Json) -> None:
    used = [{"counterSet": "card", "counters": {"slots": {"value": "1"}}}]
    grouped = device("b", consumesCounters=[{**used[0], "compatibilityGroups": ["mig"]}])
    counters = [{"name": "card", "counters": {"slots": {"value": "8"}}}]
    slices = [
        slice_of(device("a", consumesCounters=used), name="s0", count=3),
        slice_of(grouped, name="s1", count=3),
        slice_of(name="s2", count=3, sharedCounters=counters),
    ]
    reason = "is not evaluated: it has compatibilityGroups (DRADeviceCompatibilityGroups)"
    asked = [claim(make_request(**mode))]
    query = make_query(slices, asked)
    error = allocate(**query)["error"]
    assert error is not None and reason in error
    explanation = explain(**query)
    assert not explanation["fits"] and explanation["pools"][0]["problem"] == f"the pool {reason}"
    sweep = cluster_of(**query).fits(asked)
    assert reason in sweep.errors[NODE] and not sweep.reasons
    counted = cluster_of(**query).capacity(asked)
    assert (counted.total, counted.total_is_partial) == (0, True)
    assert counted.nodes[0].causes == ["not_evaluated"] and reason in counted.nodes[0].reason
    without = make_query([*slices, slice_of(device("c"), pool="other", name="s3")], [claim(make_request())])
    assert devices_of(allocate(**without)) == ["c"], "other pools are evaluated"


def rejections_of(explanation: Json, name: str) -> list[Json]:
    reports = {report["device"]: report for report in explanation["claims"][0]["requests"][0]["devices"]}
    found: list[Json] = reports[name]["rejections"]
    return found


# Lists.


def test_explanations_show_the_values_of_lists() -> None:
    explanation = explain(**on_rails(rails("a", "1", "2"), rails("b", "2"), rails("c", "3")))
    assert explanation["fits"]
    (constraint,) = explanation["claims"][0]["constraints"]
    assert constraint["problem"] is None
    assert constraint["values"] == [
        {"value": "1", "devices": ["a"]},
        {"value": "2", "devices": ["a", "b"]},
        {"value": "3", "devices": ["c"]},
    ]
    (rejection,) = rejections_of(explanation, "c")
    assert rejection["value"] == "3"
    assert "1 device is available for request main, 2 are needed" in rejection["message"]


def test_explanations_name_lists_without_a_common_value() -> None:
    explanation = explain(**on_rails(rails("a", "1", "2"), rails("b", "3")))
    assert (
        "no value of gpu.example.com/rails is shared by enough available devices" in explanation["claims"][0]["summary"]
    )
    (rejection,) = rejections_of(explanation, "a")
    assert rejection["value"] == "1, 2"
    few = "1 device is available for request main, 2 are needed"
    assert rejection["message"] == f"with gpu.example.com/rails = 1, {few}; with gpu.example.com/rails = 2, {few}"


def test_explanations_name_lists_with_too_few_values() -> None:
    explanation = explain(**on_rails(rails("a", "1"), rails("b", "1"), kind="distinctAttribute"))
    assert "the available devices have only 1 different values" in explanation["claims"][0]["summary"]


def test_lists_that_have_a_common_value_only_in_pairs_are_not_called_a_lack_of_devices() -> None:
    explanation = explain(**on_rails(rails("a", "1", "2"), rails("b", "2", "3"), rails("c", "3", "1"), count=3))
    assert not explanation["fits"]
    assert "no value of" in explanation["claims"][0]["summary"], "each value is of two devices only"


# Skipped operations.


def test_explanations_name_operations_that_the_node_cannot_skip() -> None:
    query = GATED_CASES["skipped operations need a node that declares them"]()
    (rejection,) = rejections_of(explain(**query), "a")
    assert rejection == {
        "kind": "node_operations",
        "operations": ["*"],
        "message": f"its slice has skipNodeOperations (*), and node {NODE} does not declare {OPERATIONS}",
    }
    (other_gate,) = rejections_of(explain(**{**query, "gates": [LISTS], "node": declaring()}), "a")
    assert other_gate["message"].endswith(f"and the feature gate {OPERATIONS} is off")
    assert rejections_of(explain(**{**query, "gates": []}), "a") == []


def test_all_devices_are_explained_with_those_whose_operations_cannot_be_skipped() -> None:
    explanation = explain(**GATED_CASES["all devices do not fit if operations of one cannot be skipped"]())
    assert explanation["claims"][0]["requests"][0]["needed"] == 2
    assert "1 is not usable with skipNodeOperations on this node" in explanation["claims"][0]["summary"]


def test_a_cluster_names_operations_as_the_cause() -> None:
    node = {"metadata": {"name": NODE}}
    cluster = Cluster([reserved(device("a"))], [{"metadata": {"name": "any"}}], nodes=[node], gates=[OPERATIONS])
    sweep = cluster.fits([claim(make_request())])
    assert "1 not usable with skipNodeOperations on this node" in sweep.reasons[NODE]
    assert cluster.capacity([claim(make_request())]).nodes[0].causes == ["node_operations"]
    cluster.update_node(declaring())
    assert cluster.fits([claim(make_request())]).fits == [NODE]


# Gates.


def test_an_unknown_gate_is_refused() -> None:
    with pytest.raises(PermanentError, match="DRADerivedAttributes"):
        Cluster(gates=["DRADerivedAttributes"])
