"""Keeps the agent's labels on its own Node, by server-side apply: labels of other owners are never in a request.

Without the option, labels that an earlier run has left are removed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from dra_agent.agent.fabric_labels import fabric_labels, label_prefix
from dra_agent.errors import AgentError
from dra_agent.inventory.model import Inventory
from dra_agent.kube_client.client import ApiClient
from dra_agent.kube_client.errors import ForbiddenError
from dra_agent.kube_client.kinds import NODES
from dra_agent.kube_client.node_watch import NodeWatch
from dra_agent.reconcile_loop import reconcile
from dra_agent.retry import Backoff
from dra_agent.status.permission import PermissionMonitor
from dra_agent.supervisor import supervisor

log = logging.getLogger(__name__)


class NodeLabels:
    """Writes the labels from `start` to `stop`. Lives on the event loop; the labels stay after `stop`."""

    def __init__(
        self,
        api: ApiClient,
        watch: NodeWatch,
        *,
        node: str,
        driver: str,
        is_wanted: bool,
        inventory: Callable[[], Inventory],
        is_leader: Callable[[], bool],
    ) -> None:
        """`is_wanted`: write labels, and do not only remove them.

        `is_leader`: whether this agent writes. When it becomes the leader, `check` is called.
        """
        self._api = api
        self._watch = watch
        self._node = node
        self._driver = driver
        self._manager = f"{driver}-fabric"
        self._is_wanted = is_wanted
        self._inventory = inventory
        self._is_leader = is_leader
        self._present: dict[str, str] | None = None
        """The labels that this agent owns on the Node; None before the first state of it."""
        self._attempted: tuple[dict[str, str], dict[str, str]] | None = None
        """The labels after a write that was refused or had another result, and those that it wrote."""
        self._retry_at_s: float | None = None
        """When the same is written again after a refusal; None: not before something changes."""
        self._version = 0
        """The resource version of that state. The watch and the response of a write come in any order."""
        self._permission = PermissionMonitor(
            "the labels of the node are not written", "nodeLabels of the chart", level=logging.ERROR
        )
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start to follow the Node and to write."""
        self._tasks = [
            supervisor().loop("node labels: follow", self._follow),
            supervisor().loop("node labels: write", self._write),
        ]

    def check(self) -> None:
        """Check whether labels must be written, after a change of the devices or of the leader; returns at once."""
        self._changed.set()

    async def stop(self) -> None:
        """Stop writing."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self) -> None:
        await reconcile(self._changed, self._write_if_different, Backoff(first=0.5, longest=30.0))

    async def _follow(self) -> None:
        async for state in self._watch.states():
            if state.node is not None and state.error is None:
                before = self._present
                self._store(state.node)
                if self._present != before:
                    self._changed.set()

    def _store(self, node: Mapping[str, Any]) -> dict[str, str]:
        """Return the owned labels of a state, and keep them unless a newer one is known."""
        version, owned = _version(node), owned_labels(node, self._manager, label_prefix(self._driver))
        if version >= self._version:
            self._version, self._present = version, owned
        return owned

    async def _write_if_different(self, backoff: Backoff) -> float | None:
        """Write the labels if they differ; return the seconds to the next attempt, None if none is needed."""
        present = self._present
        if present is None:
            return None
        desired = fabric_labels(self._inventory(), self._driver, present) if self._is_wanted else {}
        if desired == present:
            self._attempted = None
            return None
        if (present, desired) == self._attempted:
            wait_s = None if self._retry_at_s is None else self._retry_at_s - time.monotonic()
            if wait_s is None or wait_s > 0:
                return wait_s
        if not self._is_leader():
            return None
        body: dict[str, Any] = {"metadata": {"name": self._node, "labels": desired}}
        try:
            written = await self._api.apply(NODES, self._node, body, field_manager=self._manager)
        except ForbiddenError as error:
            hint = ""
            if not self._is_wanted:
                hint = f"or remove them: kubectl label node {self._node} {' '.join(f'{key}-' for key in present)}"
            wait_s = self._permission.refused(error, hint=hint)
            self._attempted, self._retry_at_s = (present, desired), time.monotonic() + wait_s
            return wait_s
        except AgentError as error:
            log.warning("the labels of the node are not written yet", extra={"reason": str(error)})
            return backoff.delay(error)
        else:
            self._permission.granted()
            # The watch may omit this state of the Node, or has reported a newer one.
            result = self._store(written)
            if self._version > _version(written):
                self._changed.set()
            self._attempted, self._retry_at_s = None if result == desired else (result, desired), None
            log.info("the labels of the node are written", extra={"labels": desired})
        return None


def _version(node: Mapping[str, Any]) -> int:
    """Return the resource version, which is a growing number (Kubernetes API concepts, "Resource versions")."""
    text = str((node.get("metadata") or {}).get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


def owned_labels(node: Mapping[str, Any], manager: str, prefix: str) -> dict[str, str]:
    """Return the labels below the prefix that a field manager owns; without managedFields, all below the prefix."""
    metadata = node.get("metadata") or {}
    labels = {key: str(value) for key, value in (metadata.get("labels") or {}).items() if key.startswith(prefix)}
    managed = metadata.get("managedFields")
    if not managed:
        return labels
    fields = [one.get("fieldsV1") or {} for one in managed if one.get("manager") == manager]
    owned = {name for one in fields for name in ((one.get("f:metadata") or {}).get("f:labels") or {})}
    return {key: value for key, value in labels.items() if f"f:{key}" in owned}
