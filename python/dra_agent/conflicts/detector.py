"""Polls the API server for other drivers that advertise devices of this node.

Two reads a minute: the Node, for its capacity, and the slices of other drivers. A watch would cost a connection for
which changes when a driver is installed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from dra_agent.conflicts.verdict import DeviceConflicts, Observation, find_conflicts, observe
from dra_agent.errors import AgentError, RetryableError
from dra_agent.inventory.model import Device
from dra_agent.kube_client.kinds import NODES, RESOURCE_SLICES, Kind
from dra_agent.retry import Backoff

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 60.0
"""Seconds between two checks, with a jitter of a quarter: two agents that exclude each other's devices must not run in
step, or both would alternate between withdrawing and publishing."""
FIRST_CHECK_TIMEOUT_S = 10.0
"""Seconds to wait for the first check before devices are published without it."""


class ApiReader(Protocol):
    """Requests to the API server; see dra_agent.kube_client.ApiClient."""

    def get(self, kind: Kind, name: str, /) -> Awaitable[dict[str, Any]]:
        """Read one object."""
        ...

    def list(self, kind: Kind, /, *, fields: dict[str, str]) -> Awaitable[Any]:
        """List the objects with these field values, in `.items`."""
        ...


class ConflictDetector:
    """Keeps a verdict current from `start` to `stop`."""

    def __init__(
        self,
        api: ApiReader,
        *,
        node: str,
        driver: str,
        devices: Callable[[], Iterable[Device]],
        changed: Callable[[DeviceConflicts], None],
        verdict: DeviceConflicts | None = None,
        agents: Callable[[], Mapping[str, str]] = dict,
        every: float = POLL_INTERVAL_S,
    ) -> None:
        """`devices` returns this agent's devices; `changed` is called on the loop with each new verdict.

        `verdict` is that of an earlier run: it is valid until the first check. `agents` returns the state directories
        of other agents of the host, by driver.
        """
        self._api = api
        self._node = node
        self._driver = driver
        self._devices = devices
        self._changed = changed
        self._agents = agents
        self._every = every
        self._backoff = Backoff.for_lists(longest=every)
        self._observation: Observation | None = None
        self._failure: str | None = None
        self._task: asyncio.Task[None] | None = None
        self.verdict = verdict or DeviceConflicts()

    async def start(self, timeout_s: float = FIRST_CHECK_TIMEOUT_S) -> None:
        """Check once, so that no device is published that another driver advertises, and then periodically.

        If the first check times out, the published devices are corrected later: a node without a response of its API
        server must not stay without devices.
        """
        first = asyncio.Event()
        self._task = asyncio.create_task(self._run(first), name="conflicts")
        try:
            async with asyncio.timeout(timeout_s):
                await first.wait()
        except TimeoutError:
            log.warning("other drivers of this node are not known yet")

    async def stop(self) -> None:
        """Stop checking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def devices_changed(self) -> None:
        """Evaluate the devices again with the last observation, if any."""
        if self._observation is None:
            return
        verdict = find_conflicts(self._devices(), self._observation)
        if verdict != self.verdict:
            self.verdict = verdict
            self._log_verdict()
            self._changed(verdict)

    async def _run(self, first: asyncio.Event) -> None:
        while True:
            try:
                self._observation = await self._observe()
            except AgentError as error:
                self._fail(str(error))
                if not first.is_set() and not isinstance(error, RetryableError):
                    first.set()
                await asyncio.sleep(self._backoff.delay(error))
                continue
            self._backoff.reset()
            self._failure = None
            self.devices_changed()
            first.set()
            await asyncio.sleep(self._every * random.uniform(0.75, 1.25))  # noqa: S311

    async def _observe(self) -> Observation:
        fields = {"spec.nodeName": self._node, "spec.driver!": self._driver}
        # At once, on two connections: so two are kept open, and the slices of two pools find one each when it matters.
        node, others = await asyncio.gather(
            self._api.get(NODES, self._node), self._api.list(RESOURCE_SLICES, fields=fields)
        )
        return observe(node=node, slices=others.items, driver=self._driver, name=self._node, agents=self._agents())

    def _fail(self, reason: str) -> None:
        if reason != self._failure:
            self._failure = reason
            log.warning("cannot determine the other drivers of this node", extra={"reason": reason})

    def _log_verdict(self) -> None:
        for manager, names in self.verdict.by_manager().items():
            log.warning(
                "other drivers advertise devices of this node too", extra={"manager": manager, "devices": names}
            )
        if not self.verdict:
            log.info("no other driver advertises devices of this node")
