"""The Node object of this host, listed and watched once for all parts of the agent that need it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

from dra_agent.api_object import Object
from dra_agent.errors import AgentError
from dra_agent.kube_client.client import ApiClient, ObjectList, WatchEvent
from dra_agent.kube_client.kinds import NODES
from dra_agent.kube_client.reflector import Reflector
from dra_agent.retry import Backoff

MAX_PAUSE_S = 10.0
"""Maximum seconds between two tries: a taint of the Node may announce that the node is reclaimed."""


class NodeState(NamedTuple):
    """The last known Node, and why it may be out of date."""

    node: Object | None
    """None before the first list, and if the Node does not exist."""
    error: AgentError | None
    """Why the Node cannot be followed at present."""
    is_listed: bool
    """Whether a list has succeeded."""


class NodeWatch(Reflector):
    """Follows one Node while `run` runs."""

    def __init__(self, api: ApiClient, name: str, *, backoff: Backoff | None = None) -> None:
        super().__init__(
            api,
            NODES,
            {"metadata.name": name},
            subject="changes of the node",
            backoff=backoff or Backoff.for_lists(longest=MAX_PAUSE_S),
        )
        self._node: Object | None = None
        self._is_listed = False
        self._version = 0
        self._updated = asyncio.Event()

    @property
    def state(self) -> NodeState:
        """Return the current state."""
        return NodeState(self._node, self.error, self._is_listed)

    async def first_state(self) -> NodeState:
        """Return the current state; without any, wait until the first list has succeeded or failed."""
        while not self._version:
            await self._updated.wait()
        return self.state

    async def states(self) -> AsyncGenerator[NodeState]:
        """Yield the current state if there is one, and then each later one; states in between may be omitted."""
        seen = 0
        while True:
            while seen == self._version:
                await self._updated.wait()
            seen = self._version
            yield self.state

    def store_list(self, found: ObjectList) -> None:
        """Replace the Node."""
        self._node = _without_images(found.items[0]) if found.items else None
        self._is_listed = True
        self._notify()

    def store_event(self, event: WatchEvent) -> None:
        """Replace the Node, or remove it."""
        self._node = None if event.type == "DELETED" else _without_images(event.object)
        self._notify()

    def recovered(self) -> None:
        """Report that the error is over."""
        self._notify()

    def failed(self, error: AgentError) -> None:
        """Report the error."""
        self._notify()

    def _notify(self) -> None:
        self._version += 1
        updated, self._updated = self._updated, asyncio.Event()
        updated.set()


def _without_images(node: Object) -> Object:
    # Most of a Node's bytes are the names of its images; nothing here reads them.
    status = node.get("status")
    if isinstance(status, dict):
        status.pop("images", None)
    return node
