"""Carries out what was decided about one pod, counts it, and says so once in the log."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Protocol

from dra_agent.errors import AgentError
from dra_agent.kube_client.errors import ConflictError, NotFoundError, ThrottledError
from dra_agent.reclaim.eviction_policy import Decision

log = logging.getLogger(__name__)


class PodClient(Protocol):
    """The pods of the API server. Raises the errors of dra_agent.kube_client."""

    async def get(self, namespace: str, name: str) -> dict[str, Any]:
        """Read a pod."""

    async def evict(self, namespace: str, name: str, uid: str, grace: int | None = None) -> None:
        """Have this very pod evicted, with its own grace period or this; ThrottledError where a budget forbids it."""

    async def delete(self, namespace: str, name: str, uid: str, grace: int) -> None:
        """Delete this very pod."""


class PodActions:
    """Moves pods of the claims of one notice."""

    def __init__(self, pods: PodClient, counted: Counter[tuple[str, str]]) -> None:
        """`counted` takes note of what was done, by action and result."""
        self.pods = pods
        self._counted = counted

    async def move(self, namespace: str, name: str, uid: str, decision: Decision) -> bool:
        """Evict or delete a pod; False where a budget keeps it. Raises the errors of dra_agent.kube_client."""
        how, result = decision.act, ""
        try:
            if decision.act == "evict":
                result = await self._try_evict(namespace, name, uid, decision.grace)
            elif decision.evict_first and await self._evicts_now(namespace, name, uid, decision):
                how, result = "evict", "ok"
            else:
                assert decision.act == "delete" and decision.grace is not None
                await self.pods.delete(namespace, name, uid, decision.grace)
                result = "ok"
        except AgentError:
            self._counted[how, "error"] += 1
            raise
        self._counted[how, result] += 1
        extra: dict[str, object] = {"pod": f"{namespace}/{name}", "why": decision.why, "how": how}
        if decision.grace is not None:
            extra["grace"] = decision.grace
        log.warning("pod moved" if result == "ok" else "a budget keeps the pod", extra=extra)
        return result == "ok"

    async def _try_evict(self, namespace: str, name: str, uid: str, grace: int | None = None) -> str:
        try:
            await self.pods.evict(namespace, name, uid, grace)
        except ThrottledError:
            return "budget"  # no disruption is allowed: tried again, and deleted near the deadline where configured
        return "ok"

    async def _evicts_now(self, namespace: str, name: str, uid: str, decision: Decision) -> bool:
        try:
            result = await self._try_evict(namespace, name, uid, decision.grace)
        except (NotFoundError, ConflictError):
            raise
        except AgentError:
            result = "error"  # no right to, or two budgets for one pod: there is no time to find out
        if result != "ok":
            self._counted["evict", result] += 1
        return result == "ok"
