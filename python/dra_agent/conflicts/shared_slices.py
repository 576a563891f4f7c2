"""Follows the slices that name their nodes by a selector or by device, and so may have devices of this node.

Drivers of a node's own devices use `spec.nodeName`, and the publisher's watch carries those. Few clusters have others.
"""

from __future__ import annotations

from dra_agent.conflicts.other_drivers import ForeignSlices
from dra_agent.errors import AgentError
from dra_agent.kube_client import RESOURCE_SLICES, ApiClient, ObjectList, WatchEvent
from dra_agent.kube_client.reflector import Reflector


class SharedSliceReflector(Reflector):
    """Keeps the shared slices of other drivers current while `run` runs."""

    def __init__(self, api: ApiClient, slices: ForeignSlices) -> None:
        # The API server has an index of this field: it sends no changes of slices of one node.
        super().__init__(api, RESOURCE_SLICES, {"spec.nodeName": ""}, subject="slices of several nodes")
        self._slices = slices

    def store_list(self, found: ObjectList) -> None:
        """Replace the slices."""
        self._slices.listed(found.items, "shared")

    def store_event(self, event: WatchEvent) -> None:
        """Replace a slice, or remove it."""
        self._slices.changed(event.type, event.object, "shared")

    def failed(self, error: AgentError) -> None:
        """Judge the slices of the node without these: drivers of a node's devices are not among them."""
        self._slices.unavailable("shared")
