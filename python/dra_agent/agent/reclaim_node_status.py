"""What a reclaim says on the Node object: the condition that tells of it, and that the node takes no new pods.

Both follow the taints, which move pods away, and never keep them waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from dra_agent.agent.config import Config
from dra_agent.clock import STEADY
from dra_agent.errors import AgentError
from dra_agent.kube_client.backoff import Backoff
from dra_agent.kube_client.client import ApiClient
from dra_agent.kube_client.errors import ForbiddenError
from dra_agent.kube_client.kinds import NODES
from dra_agent.reclaim.condition import condition_of, says_notice
from dra_agent.reclaim.node_field_writer import NodeFieldWriter
from dra_agent.reclaim.state import ReclaimState

log = logging.getLogger(__name__)


class NodeStatusWriter:
    """From `start` to `stop`. Lives on the event loop."""

    def __init__(
        self, config: Config, api: ApiClient, *, active: Callable[[], bool], first: Callable[[], Awaitable[None]]
    ) -> None:
        """`first` is what the condition waits for at a notice; `active` whether this agent writes, of several."""
        self._node = config.node
        self._driver = config.driver_name
        self._mode = config.reclaim.cordon
        self._manager = f"{config.driver_name}-reclaim"
        self._api = api
        self._first = first
        self._state: ReclaimState | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._cordon = NodeFieldWriter(
            self._apply_cordon, what="the cordon of the node", grant="grant it: cordon of the chart", active=active
        )
        self._condition = NodeFieldWriter(
            self._apply_condition,
            what="the condition of the node",
            grant="grant it: nodeCondition of the chart",
            active=active,
        )

    def start(self, state: ReclaimState) -> None:
        """Say what holds; or take back what an earlier run, perhaps before the host was restarted, has left."""
        self._state = state
        if state.phase == "notice":
            self._begin(state)
        else:
            self._tidy()

    async def changed(self, before: ReclaimState, after: ReclaimState) -> None:
        """Act on a change; returns at once."""
        self._state = after
        if after.phase == "notice":
            self._begin(after)
        elif before.phase == "notice":
            self._condition.set_desired(condition_of(after, self._driver, _now()))
            if self._cordon.wanted is not None:
                self._cordon.set_desired(False)
            else:
                self._tidy()  # a run before this one may have closed the node

    def named_claim(self) -> None:
        """A claim of the notice is one that others may reserve anew: their pods must not come back for it."""
        if self._mode == "auto" and self._state is not None and self._state.phase == "notice":
            self._cordon.set_desired(True)

    async def stop(self) -> None:
        """Write no more; the Node stays as it is."""
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.gather(self._tidying, return_exceptions=True)
        await self._cordon.stop()
        await self._condition.stop()

    def _begin(self, state: ReclaimState) -> None:
        self._condition.set_desired(condition_of(state, self._driver, _now()))
        if self._mode is True:
            self._cordon.set_desired(True)

    def _tidy(self) -> None:
        if self._tidying is None or self._tidying.done():
            self._tidying = asyncio.create_task(self._take_back(), name="reclaim node")

    async def _take_back(self) -> None:
        """Read the Node once, and write only where something of ours is left: an ordinary start writes nothing."""
        backoff = Backoff(first=0.5, longest=30.0)
        while True:
            try:
                node = await self._api.get(NODES, self._node)
                break
            except ForbiddenError as error:
                log.warning("what is left on the node is not known", extra={"reason": str(error)})
                return
            except AgentError as error:
                await asyncio.sleep(backoff.delay(error))
        state = self._state
        if state is None or state.phase == "notice":
            return
        if says_notice(node, self._driver):
            self._condition.set_desired(condition_of(state, self._driver, _now()))
        if closed_by(node, self._manager):
            self._cordon.set_desired(False)

    async def _apply_cordon(self, cordoned: bool) -> None:
        # With nothing in it, the agent owns nothing of the Node any more; a cordon of somebody else's stays.
        body: dict[str, Any] = {"metadata": {"name": self._node}}
        if cordoned:
            body["spec"] = {"unschedulable": True}
        await self._api.apply(NODES, self._node, body, field_manager=self._manager)

    async def _apply_condition(self, condition: dict[str, Any]) -> None:
        if condition["status"] == "True":
            await self._first()
        body = {"metadata": {"name": self._node}, "status": {"conditions": [condition]}}
        await self._api.apply(NODES, self._node, body, field_manager=self._manager, subresource="status")


def closed_by(node: Mapping[str, Any], manager: str) -> bool:
    """Whether a node is cordoned, and by that manager as far as the API server tells who wrote what."""
    if not (node.get("spec") or {}).get("unschedulable"):
        return False
    fields = (node.get("metadata") or {}).get("managedFields")
    if not fields:
        return True
    return any(
        one.get("manager") == manager and "f:unschedulable" in ((one.get("fieldsV1") or {}).get("f:spec") or {})
        for one in fields
    )


def _now() -> datetime:
    return STEADY.now()
