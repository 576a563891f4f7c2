"""Taints of the Node object: their conversion to signals, and a watch on an API server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent.kube_client.client import connect
from dra_agent.kube_client.node_watch import NodeWatch
from dra_agent.reclaim.settings import AUTOSCALERS, NodeCondition, NodeTaint, ReclaimSettings
from dra_agent.reclaim.signal import SourceError
from dra_agent.reclaim.signals.node import NodeSource, signals_of
from dra_agent.retry import Backoff
from fake_apiserver.fake import FakeApi
from reclaim.recording_sink import RecordingSink


def node(*taints: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"taints": list(taints)}}


def taint(key: str, effect: str = "NoSchedule", **fields: Any) -> dict[str, Any]:
    return {"key": key, "effect": effect, **fields}


@pytest.mark.parametrize(
    ("taints", "events"),
    [
        ([], []),
        ([taint("karpenter.sh/disrupted")], ["karpenter.sh/disrupted:NoSchedule"]),
        ([taint("ToBeDeletedByClusterAutoscaler", value="1")], ["ToBeDeletedByClusterAutoscaler:NoSchedule"]),
        ([taint("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule")], []),  # a candidate only
        ([taint("node.kubernetes.io/unschedulable")], []),
        ([taint("nvidia.com/gpu")], []),
        (["text", None, {}, {"key": 7}], []),
    ],
)
def test_taints_of_autoscalers_are_hints(taints: list[Any], events: list[str]) -> None:
    signals = signals_of(node(*taints), AUTOSCALERS, {})
    assert [signal.event for signal in signals] == events
    assert all(signal.kind == "hint" for signal in signals)


@pytest.mark.parametrize(
    "key",
    [
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "aws-node-termination-handler/rebalance-recommendation",
        "cloud.google.com/impending-node-termination",
        "remediator.kubernetes.azure.com/unschedulable",
    ],
)
def test_taints_of_clouds_are_hints_by_default(key: str) -> None:
    (signal,) = signals_of(node(taint(key, "NoExecute")), ReclaimSettings().node_taints, {})
    assert (signal.kind, signal.event) == ("hint", f"{key}:NoExecute")


def test_a_rule_can_define_a_notice_with_a_deadline() -> None:
    added = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=10)
    rules = [NodeTaint("spot/itn", "NoExecute", "notice", 120)]
    known: dict[str, datetime] = {}
    (signal,) = signals_of(node(taint("spot/itn", "NoExecute", timeAdded=added.isoformat())), rules, known)
    assert (signal.kind, signal.deadline) == ("notice", added + timedelta(seconds=120))
    assert signals_of(node(taint("spot/itn")), rules, known) == []
    # A taint without a time counts from its first observation.
    deadlines = {signals_of(node(taint("spot/itn", "NoExecute")), rules, known)[0].deadline for _ in range(3)}
    assert len(deadlines) == 1


def test_a_taint_that_returns_counts_from_its_return() -> None:
    rules = [NodeTaint("spot/itn", "", "notice", 120)]
    known = {"spot/itn:NoSchedule": datetime.now(UTC) - timedelta(hours=1)}
    assert signals_of(node(), rules, known) == []
    (signal,) = signals_of(node(taint("spot/itn")), rules, known)
    assert signal.deadline is not None and signal.deadline > datetime.now(UTC) + timedelta(seconds=100)


PREEMPT = "Preempt Scheduled: Sat, 01 Aug 2026 05:41:02 GMT. EventId: 1"


def condition(type_: str, status: str = "True", **fields: Any) -> dict[str, Any]:
    return {"type": type_, "status": status, **fields}


def with_conditions(*conditions: Any) -> dict[str, Any]:
    return {**node(), "status": {"conditions": list(conditions)}}


@pytest.mark.parametrize(
    ("conditions", "events"),
    [
        ([condition("VMEventScheduled", message=PREEMPT)], ["VMEventScheduled=True"]),
        ([condition("VMEventScheduled", message="Freeze Scheduled: now")], []),
        ([condition("VMEventScheduled", "False", message=PREEMPT)], []),
        ([condition("PreemptionScheduled", reason="SpotEvictionIncoming")], ["PreemptionScheduled=True"]),
        ([condition("Ready"), condition("MemoryPressure", "False")], []),
        (["text", None, {}, {"type": 7}, condition("VMEventScheduled", message=7)], []),
    ],
)
def test_conditions_of_clouds_are_hints_by_default(conditions: list[Any], events: list[str]) -> None:
    signals = signals_of(with_conditions(*conditions), (), {}, ReclaimSettings().node_conditions)
    assert [(signal.kind, signal.event) for signal in signals] == [("hint", event) for event in events]


def test_a_rule_for_a_condition_can_define_a_notice_with_a_deadline() -> None:
    rules = [NodeCondition("Going", "Unknown", "Soon", "spot", "notice", 30)]
    began = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=10)
    fields = {"reason": "Soon", "message": "a spot VM", "lastTransitionTime": began.isoformat()}
    (signal,) = signals_of(with_conditions(condition("Going", "Unknown", **fields)), (), {}, rules)
    assert (signal.kind, signal.deadline) == ("notice", began + timedelta(seconds=30))
    for other in ({"reason": "Later"}, {"message": "another"}):
        assert signals_of(with_conditions(condition("Going", "Unknown", **(fields | other))), (), {}, rules) == []


def test_a_condition_without_a_time_counts_from_its_first_observation() -> None:
    rules, known = [NodeCondition("Going", kind="notice", seconds=30)], dict[str, datetime]()
    deadlines = {signals_of(with_conditions(condition("Going")), (), known, rules)[0].deadline for _ in range(3)}
    assert len(deadlines) == 1
    assert signals_of(with_conditions(), (), known, rules) == [] and known == {}


@pytest.mark.parametrize("type_", ["", "dra-agent.internal/ReclaimNotice"])
def test_a_condition_that_can_never_announce_is_refused(type_: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"node_conditions": [{"type": type_}]}, ReclaimSettings)


NAMED = {"metadata": {"name": "n"}}


@pytest.mark.parametrize(
    "malformed",
    [
        {},
        {"kind": "Pod", **NAMED},
        {**NAMED, "spec": {"taints": "all"}},
        {**NAMED, "spec": 1},
        {**NAMED, "status": {"conditions": "all"}},
        {"spec": {"taints": []}},
    ],
)
def test_a_malformed_node_is_an_error(malformed: dict[str, Any]) -> None:
    with pytest.raises(SourceError):
        signals_of(malformed, AUTOSCALERS, {})


def test_a_node_without_taints_is_valid() -> None:
    assert signals_of({"kind": "Node", **NAMED}, AUTOSCALERS, {}) == []
    assert signals_of({**NAMED, "spec": {"taints": None}}, AUTOSCALERS, {}) == []


def test_the_node_is_watched(fake_api: FakeApi, tmp_path: Path) -> None:
    fake_api.put("nodes", node())
    fake_api.put("nodes", {**node(taint("karpenter.sh/disrupted")), "metadata": {"name": "another"}})

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("node") == ())
        fake_api.put("nodes", node(taint("karpenter.sh/disrupted")))
        await sink.wait_until(lambda: sink.latest("node"))
        fake_api.end_watches()
        fake_api.put("nodes", node())
        await sink.wait_until(lambda: sink.latest("node") == ())
        fake_api.fail(500, times=2)
        fake_api.end_watches()
        await sink.wait_until(lambda: sink.failures)
        fake_api.put("nodes", node(taint("karpenter.sh/disrupted")))
        await sink.wait_until(lambda: sink.latest("node"))

    async def run(sink: RecordingSink) -> None:
        api = connect(fake_api.kubeconfig(tmp_path / "kubeconfig"))
        watch = NodeWatch(api, "n", backoff=Backoff(first=0.01, longest=0.1))
        following = asyncio.create_task(watch.run())
        reporting = asyncio.create_task(NodeSource(watch, AUTOSCALERS).run(sink))
        try:
            await scenario(sink)
        finally:
            for task in (following, reporting):
                task.cancel()
            await asyncio.gather(following, reporting, return_exceptions=True)
            await api.close()

    recorded = RecordingSink()
    asyncio.run(run(recorded))
    assert not recorded.notices()
    assert {request.query["fieldSelector"] for request in fake_api.requests} == {"metadata.name=n"}
