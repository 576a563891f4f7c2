"""Node affinity and tolerations that compare numbers."""

from __future__ import annotations

import pytest

from dra_cluster.explain.placement import scheduling_blockers, tolerates


@pytest.mark.parametrize(
    ("label", "is_matched"),
    [("10", True), ("+10", True), ("3", False), ("1_0", False), (" 10", False), ("9" * 19, False), ("9" * 5000, False)],
)
def test_numbers_are_those_of_kube_scheduler(label: str, is_matched: bool) -> None:
    terms = [{"matchExpressions": [{"key": "rank", "operator": "Gt", "values": ["3"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    node = {"metadata": {"name": "n", "labels": {"rank": label}}}
    assert (not scheduling_blockers({"spec": {"affinity": affinity}}, node)) is is_matched
    taint = {"key": "rank", "value": label, "effect": "NoSchedule"}
    assert tolerates({"key": "rank", "operator": "Gt", "value": "3"}, taint) is is_matched
