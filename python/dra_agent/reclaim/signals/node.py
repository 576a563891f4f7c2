"""Taints of the Node object with which autoscalers and others announce its removal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any

from dra_agent.clock import STEADY
from dra_agent.errors import AgentError
from dra_agent.kube_client.client import ApiClient
from dra_agent.kube_client.errors import GoneError
from dra_agent.kube_client.kinds import NODES
from dra_agent.reclaim.settings import NodeTaint
from dra_agent.reclaim.signal import Signal, SignalSink, SourceError, parse_time, printable
from dra_agent.reclaim.signals.polling import PollSchedule

POLL_INTERVAL_S = 1.0


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
        name = printable(f"{taint['key']}:{taint.get('effect', '')}")
        deadline = None
        if rule.seconds is not None:
            deadline = _added(taint, name, first_seen) + timedelta(seconds=rule.seconds)
        signals.append(Signal("node", rule.kind, name, f"the node has the taint {name}", deadline))
    # A taint that is removed and added again counts from its return.
    for absent in first_seen.keys() - {signal.event for signal in signals}:
        del first_seen[absent]
    return signals


class NodeSource:
    """The source: the Node object of this host, watched."""

    names = ("node",)

    def __init__(
        self,
        api: ApiClient,
        name: str,
        rules: Sequence[NodeTaint],
        *,
        pace: Callable[[float], PollSchedule] = PollSchedule,
    ) -> None:
        self._api = api
        self._name = name
        self._rules = rules
        self._pace = pace(POLL_INTERVAL_S)
        self._first_seen: dict[str, datetime] = {}

    async def run(self, sink: SignalSink) -> None:
        """Watch the object; after a break start again with a GET."""
        while True:
            try:
                async with aclosing(self._objects()) as objects:
                    async for node in objects:
                        sink.observed("node", signals_of(node, self._rules, self._first_seen))
                        self._pace.after_success()
            except GoneError:
                wait = self._pace.after_success()  # the resource version expired: read the node again
            except AgentError as error:
                sink.failed("node", str(error))
                wait = self._pace.after_failure(getattr(error, "retry_after", None))
            await asyncio.sleep(wait)

    async def released(self) -> None:
        """Nothing waits for the release."""

    async def _objects(self) -> AsyncGenerator[dict[str, Any], None]:
        chosen = {"metadata.name": self._name}
        found = await self._api.list(NODES, fields=chosen)
        for node in found.items:
            yield node
        events = self._api.watch(NODES, fields=chosen, resource_version=found.resource_version)
        async for event in events:
            yield event.object  # after a deletion: the last state, which changes nothing


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
