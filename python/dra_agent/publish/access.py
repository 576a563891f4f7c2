"""Proves that this agent can write slices, before it takes over from another agent of its node.

During a rolling update two agents live on one node, and one of them leads: it writes. An agent that lives but is
refused by the API server, or cannot reach it, must not keep the other one from writing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from dra_agent.api_object import Object
from dra_agent.errors import AgentError, RetryableError
from dra_agent.inventory.model import pool_name
from dra_agent.kube_client import (
    NODES,
    RESOURCE_SLICES,
    ApiClient,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    ThrottledError,
    UnauthorizedError,
    UnavailableError,
)
from dra_agent.kube_client.node_watch import NodeWatch
from dra_agent.publish.reflector import SliceReflector
from dra_agent.publish.slice_store import SliceStore
from dra_agent.retry import Backoff
from dra_agent.slices import Slice


class NodeOwnerReference:
    """The Node's uid, from its watch if there is one that works. Otherwise it is read, again after slices were deleted.

    The Node may be a new one then. A reference to an earlier Node does no harm for long: the garbage collector deletes
    the slice, and it is published again.
    """

    def __init__(self, api: ApiClient, node: str, watch: NodeWatch | None = None) -> None:
        self._api = api
        self._node = node
        self._watch = watch
        self._reference: dict[str, Any] | None = None

    def invalidate(self) -> None:
        """Read the Node again before the next slice is written."""
        self._reference = None

    async def reference(self) -> dict[str, Any]:
        """Return the ownerReference.

        Raises the errors of `kube_client.errors`; RetryableError if the Node does not exist yet.
        """
        if self._reference is None:
            try:
                node = await self._watched() or await self._api.get(NODES, self._node)
            except NotFoundError as error:
                raise RetryableError(
                    f"there is no Node {self._node!r} (yet)",
                    where=f"API server {self._api.address}",
                    hint="the kubelet makes it; if it has another name, give --node-name",
                ) from error
            uid = (node.get("metadata") or {}).get("uid")
            if not isinstance(uid, str):
                raise UnavailableError("the response is not a Node", where=f"API server {self._api.address}")
            # As Kubernetes' helper writes it: controller, no blockOwnerDeletion.
            self._reference = {
                "apiVersion": "v1",
                "kind": "Node",
                "name": self._node,
                "uid": uid,
                "controller": True,
            }
        return self._reference

    async def _watched(self) -> Object | None:
        state = None if self._watch is None else await self._watch.first_state()
        return state.node if state is not None and state.error is None else None


log = logging.getLogger(__name__)

LOST_AFTER_S = 10.0
"""How long the API server may be unreachable before leadership goes to an older agent that can reach it."""
CHECK_INTERVAL_S = 0.5
"""Between two checks of local state; nothing is sent while it stays the same. Lists and watches wake the check; a
silent API server and other agents do not."""


class Peers(Protocol):
    """The agents of this node that share one state directory; agent.leadership has the one implementation.

    It is a protocol because the publisher is in a layer below the agent that composes it.
    """

    def is_leader(self) -> bool:
        """Return whether this agent is the one that writes."""
        ...

    def has_able_elder(self) -> bool:
        """Return whether an older agent lives that can write."""
        ...

    def report_able(self, able: bool) -> None:
        """Publish to the others whether this agent can write."""
        ...


class WriteAccess:
    """Keeps the report to the peers current while `run` runs. Everything belongs on the event loop."""

    def __init__(
        self,
        api: ApiClient,
        *,
        node: str,
        driver: str,
        peers: Peers,
        following: SliceReflector,
        published: SliceStore,
        ownership: NodeOwnerReference,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._node = node
        self._driver = driver
        self._peers = peers
        self._following = following
        self._published = published
        self._ownership = ownership
        self._clock = clock
        self._backoff = Backoff(first=1.0, longest=60.0)
        self._probe_at = float("-inf")
        self._refused = False
        """Whether only the response to a write can show that writes are accepted."""
        self._failing_since: float | None = None
        """When the API server became unreachable for writes."""
        self._woken = asyncio.Event()
        self.able = False
        """The last reported value."""
        self.reason: AgentError | None = None
        """Why this agent cannot write, as far as is known."""

    @property
    def is_woken(self) -> bool:
        """Whether a check that `wake` has requested has not begun yet."""
        return self._woken.is_set()

    def wake(self) -> None:
        """Check at once: the list or the watch has succeeded."""
        self._woken.set()

    def succeeded(self) -> None:
        """A write was accepted."""
        self._failing_since = None
        self._backoff.reset()
        self._refused = False
        self._set_able()

    def failed(self, error: AgentError) -> None:
        """A write, or a read that it requires, has failed."""
        if isinstance(error, ForbiddenError | UnauthorizedError):
            self._lose(error)
        elif isinstance(error, UnavailableError) and not isinstance(error, ThrottledError):
            if self._failing_since is None:
                self._failing_since = self._clock()
            self.reason = error

    async def run(self) -> None:
        """Check until it is cancelled."""
        while True:
            try:
                await self._check()
            except Exception:  # a defect here must not leave the node without a leader
                log.exception("cannot determine if slices can be written")
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_INTERVAL_S):
                    await self._woken.wait()
            self._woken.clear()

    async def _check(self) -> None:
        error = self._following.error
        if isinstance(error, ForbiddenError | UnauthorizedError):
            # The probe comes only after a list that succeeds.
            self._set_unable(error)
            return
        if self._following.lag_s > LOST_AFTER_S:
            self._set_unable(error or UnavailableError("the slices are not followed"))
            return
        if self._failing_since is not None and self._clock() - self._failing_since > LOST_AFTER_S:
            self._failing_since = None
            self._lose(self.reason or UnavailableError("writes get no response"))
            return
        if not self.able and error is None and self._published.complete and self._clock() >= self._probe_at:
            await self._take_over()

    async def _take_over(self) -> None:
        try:
            # An agent without an older one leads already: its writes show whether they are accepted.
            if self._refused or self._peers.has_able_elder():
                await self._probe()
        except AgentError as error:
            self._set_unable(error)
            self._probe_at = self._clock() + self._backoff.delay(error)
            return
        self._refused = False
        self._set_able()

    async def _probe(self) -> None:
        """Send a write as a dry run. Raises the errors of dra_agent.kube_client where it is not accepted."""
        await self._ownership.reference()
        known = next(iter(self._published.all()), None)
        try:
            if known is None:
                await self._api.create(RESOURCE_SLICES, self._empty_slice(), dry_run=True)
            else:
                await self._api.replace(RESOURCE_SLICES, known.decoded(), dry_run=True)
        except (ConflictError, NotFoundError):
            pass  # permitted, and changed by the leader since

    def _empty_slice(self) -> Slice:
        pool = {"name": pool_name(self._node, "gpu"), "generation": 1, "resourceSliceCount": 1}
        return {
            "metadata": {"generateName": f"{self._node}-"},
            "spec": {"driver": self._driver, "nodeName": self._node, "pool": pool, "devices": []},
        }

    def _lose(self, error: AgentError) -> None:
        self._refused = True
        self._probe_at = self._clock() + self._backoff.delay(error)
        self._set_unable(error)

    def _set_able(self) -> None:
        self.reason = None
        if not self.able:
            self.able = True
            self._peers.report_able(True)
            log.info("slices can be written")

    def _set_unable(self, error: AgentError) -> None:
        self.reason = error
        if self.able:
            self.able = False
            self._peers.report_able(False)
            log.warning("slices cannot be written; another agent leads, if one can", extra={"reason": str(error)})
