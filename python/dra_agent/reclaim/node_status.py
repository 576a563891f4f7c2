"""The Node object in a reclaim: its condition, and the cordon.

Both follow the taints, which evict pods, and never delay them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from dra_agent.clock import STEADY
from dra_agent.errors import AgentError
from dra_agent.kube_client.client import ApiClient
from dra_agent.kube_client.errors import ForbiddenError
from dra_agent.kube_client.kinds import NODES
from dra_agent.reclaim.announcements import condition_of, says_notice
from dra_agent.reclaim.state import ReclaimState
from dra_agent.retry import Backoff

log = logging.getLogger(__name__)

_Word = TypeVar("_Word")


class NodeFieldWriter(Generic[_Word]):
    """Writes the desired value in the background, from the first `set_desired` to `stop`."""

    def __init__(
        self,
        apply: Callable[[_Word], Awaitable[None]],
        *,
        what: str,
        grant: str,
        active: Callable[[], bool] = lambda: True,
    ) -> None:
        """`apply` writes a value and leaves fields of others; it may raise the errors of dra_agent.kube_client.

        `what` names it in the log, `grant` the permission that it needs. `active`: whether this is the agent that
        writes, of several in a rolling update.
        """
        self._apply = apply
        self._what = what
        self._grant = grant
        self._active = active
        self._refused = False
        self.wanted: _Word | None = None
        """The latest value; None before the first."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def set_desired(self, word: _Word) -> None:
        """Have it written; returns at once."""
        if word == self.wanted:
            return
        self.wanted = word
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"reclaim {self._what}")

    async def stop(self) -> None:
        """Write no more; the Node stays as it is."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        # A request is never given up for the next one, which it could arrive after.
        backoff = Backoff(first=0.25, longest=2.0)
        while True:
            self._changed.clear()
            wait: float | None = None
            if not self._active():
                wait = 1.0
            elif self.wanted is not None:
                wait = await self._write(self.wanted, backoff)
            if wait is None:
                backoff.reset()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()

    async def _write(self, word: _Word, backoff: Backoff) -> float | None:
        """Write it; the seconds after which to try again, None where it is done or cannot be."""
        try:
            await self._apply(word)
        except ForbiddenError as error:
            if not self._refused:
                log.error(f"{self._what} is not written", extra={"reason": str(error), "todo": self._grant})
            self._refused = True
        except AgentError as error:
            log.warning(f"{self._what} is not written yet", extra={"reason": str(error)})
            return backoff.delay(error)
        else:
            self._refused = False
            log.info(f"{self._what} is written")
        return None


class NodeStatusWriter:
    """From `start` to `stop`. Lives on the event loop."""

    def __init__(
        self,
        api: ApiClient,
        *,
        node: str,
        driver: str,
        cordon: Literal["auto"] | bool,
        active: Callable[[], bool],
        first: Callable[[], Awaitable[None]],
    ) -> None:
        """`first` is what the condition waits for at a notice; `active` whether this agent writes, of several."""
        self._node = node
        self._driver = driver
        self._mode = cordon
        self._manager = f"{driver}-reclaim"
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
        """Write the current state; or withdraw what an earlier run, perhaps before a reboot, has left."""
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
        """Cordon for a named claim of the notice, which new pods could reserve again."""
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
        # An empty apply removes the agent's fields; a cordon by another owner stays.
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
    """Whether a node is cordoned, and by that field manager according to managedFields."""
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
