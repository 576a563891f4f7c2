"""The pods of claims in /metrics: off by default, bounded, and only of claims that are prepared."""

from __future__ import annotations

from typing import Any

import pytest

from dra_agent.inventory.model import Inventory
from dra_agent.metrics.registry import Metrics
from dra_agent.metrics.snapshot import MetricsSnapshot
from dra_agent.metrics.telemetry import TelemetryMetrics
from dra_agent.telemetry.claim_pods import MAX_CLAIMS, MAX_PODS, ClaimPods
from dra_agent.telemetry.sampler import TelemetrySnapshot
from dra_agent.telemetry.settings import TelemetrySettings


def claim(name: str, *pods: str, uid: str = "") -> dict[str, Any]:
    users = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    metadata = {"uid": uid or f"uid-{name}", "namespace": "team", "name": name}
    return {"metadata": metadata, "status": {"reservedFor": users}}


def series(pods: ClaimPods | None, *held: str, claim_labels: bool = True) -> list[str]:
    metrics = Metrics(MetricsSnapshot)
    metrics.add(
        TelemetryMetrics(
            TelemetrySnapshot, Inventory, "node-1", lambda: set(held), claim_labels=claim_labels, pods=pods
        )
    )
    lines = metrics.render()[0].decode().splitlines()
    return [line.partition("claim_pod_info")[2] for line in lines if line.startswith("dra_agent_claim_pod_info")]


def test_pods_are_off_by_default_and_where_claims_have_no_names() -> None:
    assert TelemetrySettings().claim_pods is False
    pods = ClaimPods()
    pods.seen(claim("train", "train-0"))
    assert series(None, "uid-train") == []
    assert series(pods, "uid-train", claim_labels=False) == []


def test_a_prepared_claim_has_the_pods_that_it_is_reserved_for() -> None:
    pods = ClaimPods()
    pods.seen(claim("train", "train-1", "train-0"))
    pods.seen(claim("other", "other-0"))
    assert series(pods) == []
    assert series(pods, "uid-train") == [
        '{claim="train",namespace="team",pod="train-0"} 1.0',
        '{claim="train",namespace="team",pod="train-1"} 1.0',
    ]
    pods.seen(claim("train", "train-2"))
    assert series(pods, "uid-train") == ['{claim="train",namespace="team",pod="train-2"} 1.0']


def test_a_claim_that_is_read_before_it_is_prepared_is_not_forgotten() -> None:
    pods = ClaimPods()
    pods.seen(claim("train", "train-0"))
    assert series(pods, "uid-older") == []
    assert len(series(pods, "uid-train")) == 1


def test_two_claims_of_one_name_make_no_series_twice() -> None:
    pods = ClaimPods()
    pods.seen(claim("train", "train-0", uid="old"))
    pods.seen(claim("train", "train-0", uid="new"))
    assert series(pods, "old", "new") == ['{claim="train",namespace="team",pod="train-0"} 1.0']


def test_pods_and_claims_are_bounded() -> None:
    pods = ClaimPods()
    pods.seen(claim("first", "first-0"))
    pods.seen(claim("many", *(f"pod-{number:03}" for number in range(256))))
    assert len(series(pods, "uid-many")) == MAX_PODS
    for number in range(MAX_CLAIMS - 1):
        pods.seen(claim(f"claim-{number}", "pod"))
    assert series(pods, "uid-first") == [] and len(series(pods, "uid-many")) == MAX_PODS


@pytest.mark.parametrize(
    "malformed",
    [
        {},
        {"metadata": None},
        {"metadata": {"uid": "u", "namespace": "n", "name": 1}},
        {**claim("x"), "status": None},
        {**claim("x"), "status": {"reservedFor": "pods"}},
        {**claim("x"), "status": {"reservedFor": [None, "a", {"resource": "pods"}, {"resource": "pods", "name": 3}]}},
        {**claim("x"), "status": {"reservedFor": [{"resource": "pods", "apiGroup": "x.example", "name": "a"}]}},
    ],
)
def test_claims_of_another_form_have_no_pods(malformed: dict[str, Any]) -> None:
    pods = ClaimPods()
    pods.seen(malformed)
    assert series(pods, "u", "uid-x") == []
