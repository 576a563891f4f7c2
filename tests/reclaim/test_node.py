"""Taints of the Node object, as a function of it and as a watch on an API server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dra_agent.kube_client.client import connect
from dra_agent.reclaim.settings import AUTOSCALERS, NodeTaint
from dra_agent.reclaim.signal import SourceError
from dra_agent.reclaim.signals.node import NodeSource, signals_of
from fake_apiserver.fake import FakeApi
from reclaim.recording_sink import Listener, listen, quick


def node(*taints: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"taints": list(taints)}}


def taint(key: str, effect: str = "NoSchedule", **others: Any) -> dict[str, Any]:
    return {"key": key, "effect": effect, **others}


@pytest.mark.parametrize(
    ("taints", "events"),
    [
        ([], []),
        ([taint("karpenter.sh/disrupted")], ["karpenter.sh/disrupted:NoSchedule"]),
        ([taint("ToBeDeletedByClusterAutoscaler", value="1")], ["ToBeDeletedByClusterAutoscaler:NoSchedule"]),
        ([taint("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule")], []),  # only a candidate
        ([taint("node.kubernetes.io/unschedulable")], []),
        ([taint("nvidia.com/gpu")], []),
        (["text", None, {}, {"key": 7}], []),
    ],
)
def test_taints_of_autoscalers_are_hints(taints: list[Any], events: list[str]) -> None:
    readings = signals_of(node(*taints), AUTOSCALERS, {})
    assert [reading.event for reading in readings] == events
    assert all(reading.kind == "hint" for reading in readings)


def test_a_rule_can_make_a_notice_with_a_deadline() -> None:
    added = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=10)
    rules = [NodeTaint("spot/itn", "NoExecute", "notice", 120)]
    known: dict[str, datetime] = {}
    (reading,) = signals_of(node(taint("spot/itn", "NoExecute", timeAdded=added.isoformat())), rules, known)
    assert (reading.kind, reading.deadline) == ("notice", added + timedelta(seconds=120))
    assert signals_of(node(taint("spot/itn")), rules, known) == []
    # A taint that does not say since when counts from when it was seen first.
    deadlines = {signals_of(node(taint("spot/itn", "NoExecute")), rules, known)[0].deadline for _ in range(3)}
    assert len(deadlines) == 1


def test_a_taint_that_comes_back_counts_from_its_return() -> None:
    rules = [NodeTaint("spot/itn", "", "notice", 120)]
    known = {"spot/itn:NoSchedule": datetime.now(UTC) - timedelta(hours=1)}
    assert signals_of(node(), rules, known) == []
    (reading,) = signals_of(node(taint("spot/itn")), rules, known)
    assert reading.deadline is not None and reading.deadline > datetime.now(UTC) + timedelta(seconds=100)


NAMED = {"metadata": {"name": "n"}}


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"kind": "Pod", **NAMED},
        {**NAMED, "spec": {"taints": "all"}},
        {**NAMED, "spec": 1},
        {"spec": {"taints": []}},
    ],
)
def test_what_is_no_node_is_unknown(odd: dict[str, Any]) -> None:
    with pytest.raises(SourceError):
        signals_of(odd, AUTOSCALERS, {})


def test_a_node_may_say_nothing_of_taints() -> None:
    assert signals_of({"kind": "Node", **NAMED}, AUTOSCALERS, {}) == []
    assert signals_of({**NAMED, "spec": {"taints": None}}, AUTOSCALERS, {}) == []


def test_the_node_is_watched(fake_api: FakeApi, tmp_path: Path) -> None:
    fake_api.put("nodes", node())
    fake_api.put("nodes", {**node(taint("karpenter.sh/disrupted")), "metadata": {"name": "another"}})

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("node") == ())
        fake_api.put("nodes", node(taint("karpenter.sh/disrupted")))
        await listener.until(lambda: listener.now("node"))
        fake_api.end_watches()
        fake_api.put("nodes", node())
        await listener.until(lambda: listener.now("node") == ())
        fake_api.fail(500, times=2)
        fake_api.end_watches()
        await listener.until(lambda: listener.failures)
        fake_api.put("nodes", node(taint("karpenter.sh/disrupted")))
        await listener.until(lambda: listener.now("node"))

    api = connect(fake_api.kubeconfig(tmp_path / "kubeconfig"))
    heard = listen(NodeSource(api, "n", AUTOSCALERS, pace=quick), story)
    assert not heard.notices()
