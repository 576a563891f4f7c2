"""The limit of time for the expressions of DeviceTaintRules, which only v1alpha3 until Kubernetes 1.34 has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from allocator.cases import DRIVER, device, slice_of
from deadlines import DeadlineClock, deadline_clock
from dra_cluster.explain import taint_rules
from dra_cluster.explain.taint_rules import EXPRESSIONS_TIMEOUT_S, tainted

__all__ = ["deadline_clock"]

Json = dict[str, Any]


def rule(name: str, **selector: Any) -> Json:
    taint = {"key": name, "effect": "NoSchedule"}
    return {"metadata": {"name": name}, "spec": {"taint": taint, "deviceSelector": selector}}


def with_expression(name: str, **selector: Any) -> Json:
    return rule(name, selectors=[{"cel": {"expression": "true"}}], **selector)


SLICES = [
    slice_of(*(device(f"d{index}") for index in range(4)), name=name, pool=name, nodeName=name) for name in ("n1", "n2")
]


def taints_of(slices: list[Json]) -> dict[tuple[str, str], list[str]]:
    return {
        (entry["spec"]["nodeName"], one["name"]): [taint["key"] for taint in one.get("taints", ())]
        for entry in slices
        for one in entry["spec"]["devices"]
    }


class Evaluations:
    """Stands for the evaluation of expressions, each of which needs some seconds and is true."""

    def __init__(self, clock: DeadlineClock, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.contents: list[bytes] = []
        expression = SimpleNamespace(matches=self._matches)
        native = SimpleNamespace(CelExpression=SimpleNamespace(selector=lambda text: expression))
        monkeypatch.setattr(taint_rules, "_native", native)
        self._clock = clock
        self._seconds = seconds

    def _matches(self, driver: str, content: bytes) -> bool:
        assert driver == DRIVER
        self.contents.append(content)
        self._clock.pass_(self._seconds)
        return True


def test_all_expressions_have_one_deadline(deadline_clock: DeadlineClock, monkeypatch: pytest.MonkeyPatch) -> None:
    start = deadline_clock.monotonic()
    Evaluations(deadline_clock, monkeypatch, seconds=3.0)
    notes: list[str] = []
    rules = [rule("named", pool="n2"), *(with_expression(f"slow-{index}") for index in range(5))]
    found = tainted(SLICES, rules, [], notes)
    # The evaluation that runs at the deadline ends with its own limit.
    assert deadline_clock.monotonic() - start < EXPRESSIONS_TIMEOUT_S + 3.0
    assert {key: names for key, names in taints_of(found).items() if names} == {
        ("n2", f"d{index}"): ["named"] for index in range(4)
    }, "rules without expressions apply"
    (note,) = notes
    assert note.startswith(
        "DeviceTaintRule slow-0, DeviceTaintRule slow-1, DeviceTaintRule slow-2 and 2 more: not evaluated, "
    )


def test_expressions_that_end_in_time_are_used(deadline_clock: DeadlineClock, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluations = Evaluations(deadline_clock, monkeypatch, seconds=EXPRESSIONS_TIMEOUT_S / 24)
    notes: list[str] = []
    rules = [with_expression("first"), rule("middle", device="d0"), with_expression("last", driver=DRIVER, pool="n1")]
    found = tainted(SLICES, rules, [], notes)
    assert notes == [] and len(evaluations.contents) == 12
    assert taints_of(found)["n1", "d0"] == ["first", "middle", "last"], "in the order of the rules"
    assert taints_of(found)["n2", "d1"] == ["first"]


def test_a_device_is_encoded_once_for_all_rules(deadline_clock: DeadlineClock, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluations = Evaluations(deadline_clock, monkeypatch, seconds=0.0)
    tainted(SLICES, [with_expression(f"rule-{index}") for index in range(3)], [], [])
    assert len(evaluations.contents) == 24
    assert len({id(content) for content in evaluations.contents}) == 8


def test_slices_without_a_matching_rule_are_unchanged() -> None:
    found = tainted(SLICES, [rule("other", driver="other.example.com"), rule("n1", pool="n1")], [], [])
    assert found[1] is SLICES[1] and all(taints_of(found)["n1", f"d{index}"] == ["n1"] for index in range(4))
