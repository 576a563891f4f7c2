"""The Node object in a reclaim: its condition, and the cordon.

Both follow the taints, which evict pods, and never delay them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Generic, Literal, TypeVar

from dra_agent.api_object import Object
from dra_agent.clock import STEADY
from dra_agent.errors import AgentError
from dra_agent.kube_client.client import ApiClient
from dra_agent.kube_client.errors import ForbiddenError
from dra_agent.kube_client.kinds import NODES
from dra_agent.kube_client.node_watch import NodeWatch
from dra_agent.reclaim.announcements import condition_of, has_notice_condition
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.taint_rollout import TaintRollout
from dra_agent.reconcile_loop import reconcile
from dra_agent.retry import Backoff
from dra_agent.status.permission import PermissionMonitor
from dra_agent.supervisor import supervisor

log = logging.getLogger(__name__)

CONDITION_DELAY_S = 0.5
"""Maximum seconds for which the condition of the Node waits for the taints."""
LEADER_CHECK_INTERVAL_S = 1.0
"""Seconds between two checks whether this agent has become the leader: other processes decide it, too."""
_Value = TypeVar("_Value")


class NodeFieldWriter(Generic[_Value]):
    """Writes one field of the Node in the background, with retries, from the first `set_desired` to `stop`."""

    def __init__(
        self,
        apply: Callable[[_Value], Awaitable[None]],
        *,
        operation: str,
        grant: str,
        is_leader: Callable[[], bool] = lambda: True,
        urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        """`apply` writes a value and leaves fields of others; it may raise the errors of dra_agent.kube_client.

        `operation` is the name of the field in the log, `grant` what gives the permission. `is_leader`: whether this
        agent writes, of several in a rolling update. `urgent` as in Backoff.
        """
        self._apply = apply
        self._urgent = urgent
        self._operation = operation
        self._is_leader = is_leader
        self._permission = PermissionMonitor(f"{operation} is not written", grant, level=logging.ERROR)
        self.desired: _Value | None = None
        """The latest value; None before the first."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def set_desired(self, value: _Value) -> None:
        """Have a value written; returns at once."""
        if value == self.desired:
            return
        self.desired = value
        self._changed.set()
        if self._task is None:
            self._task = supervisor().loop("reclaim node", self._run, of=self._operation)

    def write_again(self) -> None:
        """Have the latest value written again, if there is one: another agent has written meanwhile."""
        self._changed.set()

    async def stop(self) -> None:
        """Stop writing; the Node stays as it is."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        await reconcile(self._changed, self._write_if_leader, Backoff(first=0.25, longest=2.0, urgent=self._urgent))

    async def _write_if_leader(self, backoff: Backoff) -> float | None:
        if not self._is_leader():
            return LEADER_CHECK_INTERVAL_S
        return None if self.desired is None else await self._write(self.desired, backoff)

    async def _write(self, value: _Value, backoff: Backoff) -> float | None:
        """Write a value; return the seconds to the next attempt, None if it is written."""
        try:
            await self._apply(value)
        except ForbiddenError as error:
            return self._permission.refused(error)
        except AgentError as error:
            log.warning(f"{self._operation} is not written yet", extra={"reason": str(error)})
            return backoff.delay(error)
        else:
            self._permission.granted()
            log.info(f"{self._operation} is written")
        return None


class NodeStatusWriter:
    """Writes the condition and the cordon, from `start` to `stop`. Lives on the event loop."""

    def __init__(
        self,
        api: ApiClient,
        taints: TaintRollout,
        *,
        node: str,
        node_watch: NodeWatch,
        driver: str,
        cordon: Literal["auto"] | bool,
        is_leader: Callable[[], bool],
    ) -> None:
        """The condition of a notice waits for `taints`.

        `is_leader`: whether this agent writes, of several in a rolling update.
        """
        self._node = node
        self._node_watch = node_watch
        self._driver = driver
        self._mode = cordon
        self._manager = f"{driver}-reclaim"
        self._api = api
        self._taints = taints
        self._state: ReclaimState | None = None
        self._cleanup: asyncio.Task[None] | None = None
        self._cordon = NodeFieldWriter(
            self._apply_cordon,
            operation="the cordon of the node",
            grant="cordon of the chart",
            is_leader=is_leader,
            urgent=self._is_urgent,
        )
        self._condition = NodeFieldWriter(
            self._apply_condition,
            operation="the condition of the node",
            grant="nodeCondition of the chart",
            is_leader=is_leader,
            urgent=self._is_urgent,
        )

    def start(self, state: ReclaimState) -> None:
        """Write the current state, or remove the state that an earlier run left, perhaps before a reboot."""
        self._state = state
        if state.phase == "notice":
            self._begin(state)
        else:
            self._start_cleanup()

    async def changed(self, before: ReclaimState, after: ReclaimState) -> None:
        """Act on a change; returns at once."""
        self._state = after
        if after.phase == "notice":
            self._begin(after)
        elif before.phase == "notice":
            self._condition.set_desired(condition_of(after, self._driver, STEADY.now()))
            if self._cordon.desired is not None:
                self._cordon.set_desired(False)
            else:
                self._start_cleanup()  # an earlier run may have cordoned the node

    def _is_urgent(self) -> bool:
        return self._state is not None and self._state.phase == "notice"

    def write_again(self) -> None:
        """Write the current state again: another agent has led meanwhile."""
        self._condition.write_again()
        self._cordon.write_again()
        if self._state is not None and self._state.phase != "notice":
            self._start_cleanup()

    def named_claim(self) -> None:
        """Cordon for a claim of the notice that is not created for one pod: new pods could reserve it again."""
        if self._mode == "auto" and self._state is not None and self._state.phase == "notice":
            self._cordon.set_desired(True)

    async def stop(self) -> None:
        """Stop writing; the Node stays as it is."""
        if self._cleanup is not None:
            self._cleanup.cancel()
            await asyncio.gather(self._cleanup, return_exceptions=True)
        await self._cordon.stop()
        await self._condition.stop()

    def _begin(self, state: ReclaimState) -> None:
        self._condition.set_desired(condition_of(state, self._driver, STEADY.now()))
        if self._mode is True:
            self._cordon.set_desired(True)

    def _start_cleanup(self) -> None:
        if self._cleanup is None or self._cleanup.done():
            self._cleanup = supervisor().loop("reclaim node clean-up", self._clean_up)

    async def _clean_up(self) -> None:
        """Write only if fields of this agent are left on the Node: an ordinary start writes nothing."""
        node = await self._watched_node()
        state = self._state
        if state is None or state.phase == "notice":
            return
        if has_notice_condition(node, self._driver):
            self._condition.set_desired(condition_of(state, self._driver, STEADY.now()))
        if cordoned_by(node, self._manager):
            self._cordon.set_desired(False)

    async def _watched_node(self) -> Object:
        """Return the Node once its watch has it."""
        permission = PermissionMonitor(
            "a condition or cordon of an earlier notice is not removed from the node", "list and watch on nodes"
        )
        async with aclosing(self._node_watch.states()) as states:
            async for state in states:
                if isinstance(state.error, ForbiddenError):
                    permission.refused(state.error)
                elif state.error is None and state.node is not None:
                    permission.granted()
                    return state.node
        raise AssertionError("the states of a watch have no end")

    async def _apply_cordon(self, cordoned: bool) -> None:
        # An empty apply removes the agent's fields; a cordon by another owner stays.
        body: dict[str, Any] = {"metadata": {"name": self._node}}
        if cordoned:
            body["spec"] = {"unschedulable": True}
        await self._api.apply(NODES, self._node, body, field_manager=self._manager)

    async def _apply_condition(self, condition: dict[str, Any]) -> None:
        if condition["status"] == "True":
            await self._taints.wait(CONDITION_DELAY_S)
        body = {"metadata": {"name": self._node}, "status": {"conditions": [condition]}}
        await self._api.apply(NODES, self._node, body, field_manager=self._manager, subresource="status")


def cordoned_by(node: Mapping[str, Any], manager: str) -> bool:
    """Return whether a node is cordoned, and by that field manager according to managedFields."""
    if not (node.get("spec") or {}).get("unschedulable"):
        return False
    fields = (node.get("metadata") or {}).get("managedFields")
    if not fields:
        return True
    return any(
        one.get("manager") == manager and "f:unschedulable" in ((one.get("fieldsV1") or {}).get("f:spec") or {})
        for one in fields
    )
