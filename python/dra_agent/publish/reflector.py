"""Follows the slices of this node: those of the driver for the publisher, and those of other drivers.

One watch carries both, because the API server selects slices of a node by an index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra_agent.conflicts import ForeignSlices
from dra_agent.errors import AgentError, PermanentError
from dra_agent.kube_client import RESOURCE_SLICES, ApiClient, NotFoundError, ObjectList, WatchEvent
from dra_agent.kube_client.reflector import Reflector
from dra_agent.publish.slice_store import ChangedSlice, SliceStore
from dra_agent.retry import Backoff


class SliceReflector(Reflector):
    """Keeps the slice store current."""

    def __init__(
        self,
        api: ApiClient,
        published: SliceStore,
        *,
        node: str,
        driver: str,
        on_external_change: Callable[[set[ChangedSlice]], None],
        caught_up: Callable[[], None],
        others: ForeignSlices | None = None,
        urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_external_change` is called with the slices that changed externally.

        `caught_up` is called after the first list, and when a watch is open again after a failure. `urgent` as in
        Backoff.
        """
        backoff = Backoff.for_lists(urgent=urgent)
        super().__init__(api, RESOURCE_SLICES, {"spec.nodeName": node}, subject="slices", backoff=backoff)
        self._driver = driver
        self._published = published
        self._others = others
        self._disturbed = on_external_change
        self._caught_up = caught_up

    def store_list(self, found: ObjectList) -> None:
        """Compare with the published slices."""
        own = [item for item in found.items if _driver_of(item) == self._driver]
        if self._others is not None:
            self._others.listed([item for item in found.items if _driver_of(item) != self._driver])
        first = not self._published.complete
        touched = self._published.listed(ObjectList(own, found.resource_version))
        if first:
            self._caught_up()
        elif touched:
            self._disturbed(touched)

    def store_event(self, event: WatchEvent) -> None:
        """Compare a change with the published slices."""
        if _driver_of(event.object) != self._driver:
            if self._others is not None:
                self._others.changed(event.type, event.object)
        elif touched := self._published.changed(event):
            self._disturbed(touched)

    def recovered(self) -> None:
        """Publish again: the server may be another one."""
        self._caught_up()

    def explain(self, error: AgentError) -> AgentError:
        """Return an error that names the required version of Kubernetes, if slices are unknown."""
        if not isinstance(error, NotFoundError):
            return error
        return PermanentError(
            "this API server has no ResourceSlices of resource.k8s.io/v1",
            where=error.where,
            hint="Kubernetes 1.34 or later is needed",
        )


def _driver_of(item: dict[str, Any]) -> Any:
    spec = item.get("spec")
    return spec.get("driver") if isinstance(spec, dict) else None
