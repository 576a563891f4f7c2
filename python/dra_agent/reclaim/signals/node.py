"""Taints and conditions of the Node object with which autoscalers, clouds and others announce its removal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from dra_agent.clock import STEADY
from dra_agent.kube_client.node_watch import NodeWatch
from dra_agent.reclaim.settings import NodeCondition, NodeTaint
from dra_agent.reclaim.signal import Signal, SignalSink, SourceError, ascii_line, parse_time


def signals_of(
    node: dict[str, Any],
    rules: Sequence[NodeTaint],
    first_seen: dict[str, datetime],
    conditions: Sequence[NodeCondition] = (),
) -> list[Signal]:
    """Return the signals of a Node object's taints and conditions by the rules.

    `first_seen` holds since when a taint or condition without a time is there, by its name. SourceError for what is no
    Node.
    """
    metadata = node.get("metadata")
    taints, reported = _list(node, "spec", "taints"), _list(node, "status", "conditions")
    named = isinstance(metadata, dict) and metadata.get("name")
    if node.get("kind", "Node") != "Node" or not named or taints is None or reported is None:
        raise SourceError("the response is not a Node")
    signals = [*_of_taints(taints, rules, first_seen), *_of_conditions(reported, conditions, first_seen)]
    # What is removed and added again counts from its return.
    for absent in first_seen.keys() - {signal.event for signal in signals}:
        del first_seen[absent]
    return signals


def _list(node: dict[str, Any], part: str, field: str) -> list[Any] | None:
    """Return a list of the object, which may be absent; None if it is something else."""
    found = node.get(part) or {}
    values = (found.get(field) or []) if isinstance(found, dict) else None
    return values if isinstance(values, list) else None


def _of_taints(taints: list[Any], rules: Sequence[NodeTaint], first_seen: dict[str, datetime]) -> Iterator[Signal]:
    for taint in taints:
        rule = _rule(taint, rules)
        if rule is None:
            continue
        name = ascii_line(f"{taint['key']}:{taint.get('effect', '')}")
        yield _signal(rule, "taint", name, taint.get("timeAdded"), first_seen)


def _of_conditions(
    reported: list[Any], rules: Sequence[NodeCondition], first_seen: dict[str, datetime]
) -> Iterator[Signal]:
    for condition in reported:
        rule = next((rule for rule in rules if _matches(condition, rule)), None)
        if rule is None:
            continue
        name = ascii_line(f"{rule.type}={rule.status}")
        yield _signal(rule, "condition", name, condition.get("lastTransitionTime"), first_seen)


def _signal(
    rule: NodeTaint | NodeCondition, what: str, name: str, since: object, first_seen: dict[str, datetime]
) -> Signal:
    deadline = None
    if rule.seconds is not None:
        deadline = _since(since, name, first_seen) + timedelta(seconds=rule.seconds)
    return Signal("node", rule.kind, name, f"the node has the {what} {name}", deadline)


def _matches(condition: Any, rule: NodeCondition) -> bool:
    return (
        isinstance(condition, dict)
        and (condition.get("type"), condition.get("status")) == (rule.type, rule.status)
        and rule.reason in ("", condition.get("reason"))
        and rule.message in str(condition.get("message") or "")
    )


class NodeSource:
    """The taints and conditions of the Node object of this host, from a watch."""

    names = ("node",)

    def __init__(self, watch: NodeWatch, rules: Sequence[NodeTaint], conditions: Sequence[NodeCondition] = ()) -> None:
        self._watch = watch
        self._rules = rules
        self._conditions = conditions
        self._first_seen: dict[str, datetime] = {}

    async def run(self, sink: SignalSink) -> None:
        """Report each state of the object, and each failure of the watch."""
        async for state in self._watch.states():
            if state.error is not None:
                sink.failed("node", str(state.error))
            elif state.node is not None:
                try:
                    signals = signals_of(state.node, self._rules, self._first_seen, self._conditions)
                except SourceError as error:
                    sink.failed("node", str(error))
                else:
                    sink.observed("node", signals)

    async def released(self) -> None:
        """Nothing waits for the release."""


def _rule(taint: Any, rules: Sequence[NodeTaint]) -> NodeTaint | None:
    if not isinstance(taint, dict) or not isinstance(taint.get("key"), str):
        return None
    for rule in rules:
        if rule.key == taint["key"] and rule.effect in ("", taint.get("effect", "")):
            return rule
    return None


def _since(time: object, name: str, first_seen: dict[str, datetime]) -> datetime:
    now = STEADY.now()
    if isinstance(time, str):
        try:
            return min(STEADY.from_wall(parse_time(time)), now)
        except (ValueError, OverflowError):
            pass
    return first_seen.setdefault(name, now)
