"""Detects other drivers that advertise devices of this node, from the watches of the Node and of its ResourceSlices.

A device is excluded as soon as another manager advertises it. It returns only after the other manager has been gone for
a while, which is random: two agents that exclude what the other publishes must not both return at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from dra_agent.conflicts.find import DeviceConflicts, find_conflicts, observe
from dra_agent.conflicts.other_drivers import ForeignSlices
from dra_agent.errors import AgentError, RetryableError
from dra_agent.inventory.model import Device
from dra_agent.kube_client.node_watch import NodeState, NodeWatch
from dra_agent.supervisor import supervisor

log = logging.getLogger(__name__)

RETURN_DELAY_S = 60.0
"""Seconds after which a device is published again that no other driver advertises any more, a quarter more or less."""
FIRST_CHECK_TIMEOUT_S = 10.0
"""Seconds to wait for the first check before devices are published without it."""


class ConflictHost(Protocol):
    """What is compared with other drivers. A protocol because the agent, which has it, is a layer above."""

    @property
    def devices(self) -> Sequence[Device]:
        """The devices of this agent."""

    @property
    def identities(self) -> frozenset[str]:
        """The identities of all PCI functions of the host, as in find_conflicts."""

    def other_agents(self) -> Mapping[str, str]:
        """Return the state directories of other agents of the host, by driver."""

    def conflicts_changed(self, conflicts: DeviceConflicts) -> None:
        """Act on these new conflicts; called on the loop."""


class ConflictDetector:
    """Keeps `conflicts` current from `start` to `stop`. All methods belong on the event loop."""

    def __init__(
        self,
        node_watch: NodeWatch,
        host: ConflictHost,
        *,
        node: str,
        driver: str,
        conflicts: DeviceConflicts | None = None,
        return_delay_s: float = RETURN_DELAY_S,
    ) -> None:
        """`conflicts` are those of an earlier run: they are valid until the first check.

        `slices` receives the slices of other drivers.
        """
        self._node_watch = node_watch
        self._node: NodeState | None = None
        self._host = host
        self._return_delay_s = return_delay_s
        self._return_at: dict[str, float] = {}
        """When a device returns that no other driver advertises any more, in the loop's time."""
        self._timer: asyncio.TimerHandle | None = None
        self._failure: str | None = None
        self._checked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.slices = ForeignSlices(driver, node, self.devices_changed)
        self.conflicts = conflicts or DeviceConflicts()

    async def start(self, timeout_s: float = FIRST_CHECK_TIMEOUT_S) -> None:
        """Wait for the first check, so that no device is published that another driver advertises.

        If it times out, the published devices are corrected later: a node without a response of its API server must not
        stay without devices. The watches must run.
        """
        if self._task is None:  # else this is the start after a failure
            self._task = supervisor().loop("conflicts", self._follow_node)
        try:
            async with asyncio.timeout(timeout_s):
                await self._checked.wait()
        except TimeoutError:
            log.warning("other drivers of this node are not known yet")

    async def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def devices_changed(self) -> None:
        """Check the devices again, if the other drivers are known."""
        if self._node is None or not self._node.is_listed or not self.slices.is_listed:
            return
        devices = list(self._host.devices)
        node = self._node.node or {}
        observation = observe(node=node, foreign=self.slices.devices(node), agents=self._host.other_agents())
        conflicts = find_conflicts(devices, observation, self._host.identities)
        if self._checked.is_set():
            conflicts = self._without_early_returns(conflicts, {device.name for device in devices})
        self._checked.set()
        if conflicts != self.conflicts:
            previous, self.conflicts = self.conflicts, conflicts
            if conflicts.groups() != previous.groups():
                self._log_conflicts()
            self._host.conflicts_changed(conflicts)

    async def _follow_node(self) -> None:
        async for state in self._node_watch.states():
            self._node = state
            if state.error is not None:
                self._log_failure(str(state.error))
                if not state.is_listed and not isinstance(state.error, RetryableError):
                    self._checked.set()
                continue
            self._failure = None
            try:
                self.devices_changed()
            except AgentError as error:
                self._log_failure(str(error))

    def _without_early_returns(self, found: DeviceConflicts, names: set[str]) -> DeviceConflicts:
        """Add the devices whose other manager is not gone for long enough, and check again when it is."""
        now = asyncio.get_running_loop().time()
        managers, unmatched, return_at = dict(found.managers), dict(found.unmatched), {}
        for name, manager in self.conflicts.managers.items():
            if name in found.managers or name not in names:
                continue
            delay_s = self._return_delay_s * random.uniform(0.75, 1.25)  # noqa: S311 - breaks symmetry
            due = self._return_at.get(name, now + delay_s)
            if now < due:
                managers[name], return_at[name] = manager, due
                if name in self.conflicts.unmatched:
                    unmatched[name] = self.conflicts.unmatched[name]
        self._return_at = return_at
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if return_at:
            earliest = min(return_at.values())
            self._timer = asyncio.get_running_loop().call_at(earliest, self.devices_changed)
        return DeviceConflicts(managers, unmatched, found.unjudged)

    def _log_failure(self, reason: str) -> None:
        if reason != self._failure:
            self._failure = reason
            log.warning("cannot determine the other drivers of this node", extra={"reason": reason})

    def _log_conflicts(self) -> None:
        for group in self.conflicts.groups():
            doubt = {"unmatched": group.unmatched} if group.unmatched else {}
            log.warning(
                "other drivers advertise devices of this node too",
                extra={"manager": group.manager, "devices": group.names, **doubt},
            )
        if not self.conflicts:
            log.info("no other driver advertises devices of this node")
