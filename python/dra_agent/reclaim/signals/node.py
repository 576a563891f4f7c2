"""Taints of the Node object with which autoscalers and others announce its removal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from dra_agent.clock import STEADY
from dra_agent.kube_client.node_watch import NodeWatch
from dra_agent.reclaim.settings import NodeTaint
from dra_agent.reclaim.signal import Signal, SignalSink, SourceError, ascii_line, parse_time


def signals_of(node: dict[str, Any], rules: Sequence[NodeTaint], first_seen: dict[str, datetime]) -> list[Signal]:
    """Return the signals of a Node object's taints by the rules.

    `first_seen` holds since when a taint without timeAdded is there, by its key and effect. SourceError for what is no
    Node.
    """
    metadata, spec = node.get("metadata"), node.get("spec") or {}
    taints = (spec.get("taints") or []) if isinstance(spec, dict) else None
    named = isinstance(metadata, dict) and metadata.get("name")
    if node.get("kind", "Node") != "Node" or not named or not isinstance(taints, list):
        raise SourceError("the response is not a Node")
    signals = []
    for taint in taints:
        rule = _rule(taint, rules)
        if rule is None:
            continue
        name = ascii_line(f"{taint['key']}:{taint.get('effect', '')}")
        deadline = None
        if rule.seconds is not None:
            deadline = _added(taint, name, first_seen) + timedelta(seconds=rule.seconds)
        signals.append(Signal("node", rule.kind, name, f"the node has the taint {name}", deadline))
    # A taint that is removed and added again counts from its return.
    for absent in first_seen.keys() - {signal.event for signal in signals}:
        del first_seen[absent]
    return signals


class NodeSource:
    """The taints of the Node object of this host, from a watch."""

    names = ("node",)

    def __init__(self, watch: NodeWatch, rules: Sequence[NodeTaint]) -> None:
        self._watch = watch
        self._rules = rules
        self._first_seen: dict[str, datetime] = {}

    async def run(self, sink: SignalSink) -> None:
        """Report each state of the object, and each failure of the watch."""
        async for state in self._watch.states():
            if state.error is not None:
                sink.failed("node", str(state.error))
            elif state.node is not None:
                try:
                    signals = signals_of(state.node, self._rules, self._first_seen)
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


def _added(taint: dict[str, Any], name: str, first_seen: dict[str, datetime]) -> datetime:
    added = taint.get("timeAdded")
    now = STEADY.now()
    if isinstance(added, str):
        try:
            return min(STEADY.from_wall(parse_time(added)), now)
        except (ValueError, OverflowError):
            pass
    return first_seen.setdefault(name, now)
