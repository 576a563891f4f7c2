"""Compares the slices of every node of a fleet with its desired devices, whenever one changes."""

from __future__ import annotations

import asyncio
from typing import Any

from fleet_inventory import mismatch

from dra_agent.inventory.model import Inventory
from dra_agent.kube_client import RESOURCE_SLICES, ApiClient, ObjectList, WatchEvent
from dra_agent.kube_client.reflector import Reflector
from dra_agent.retry import Backoff


class FleetObserver(Reflector):
    """Follows all ResourceSlices while `run` runs."""

    def __init__(self, api: ApiClient) -> None:
        # Urgent: after a restart of the API server it has to measure the agents, not its own jitter.
        super().__init__(
            api, RESOURCE_SLICES, {}, subject="slices of the fleet", backoff=Backoff.for_lists(urgent=lambda: True)
        )
        self._desired: dict[str, Inventory] = {}
        self._slices: dict[str, dict[str, dict[str, Any]]] = {}
        self._differences: dict[str, str] = {}
        self._changed = asyncio.Event()
        self.disturbed: set[str] = set()
        """Nodes whose slices were wrong at any moment since this was cleared."""

    @property
    def differences(self) -> dict[str, str]:
        """The nodes whose slices are wrong, each with a difference."""
        return {node: why for node, why in self._differences.items() if why}

    def expect(self, node: str, inventory: Inventory) -> None:
        """Set the desired devices of a node."""
        self._desired[node] = inventory
        self._compare(node)

    async def wait_right(self, limit_s: float) -> float | None:
        """Return the seconds until the slices of every node are right; None after `limit_s`."""
        time = asyncio.get_running_loop().time
        began = time()
        try:
            async with asyncio.timeout(limit_s):
                while self.differences:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return None
        return time() - began

    def store_list(self, found: ObjectList) -> None:
        """Replace all slices."""
        self._slices = {}
        for one in found.items:
            self._slices.setdefault(one["spec"].get("nodeName", ""), {})[one["metadata"]["name"]] = one
        for node in self._desired:
            self._compare(node)

    def store_event(self, event: WatchEvent) -> None:
        """Apply a change."""
        node, name = event.object["spec"].get("nodeName", ""), event.object["metadata"]["name"]
        of_node = self._slices.setdefault(node, {})
        if event.type == "DELETED":
            of_node.pop(name, None)
        else:
            of_node[name] = event.object
        self._compare(node)

    def _compare(self, node: str) -> None:
        if (desired := self._desired.get(node)) is not None:
            why = self._differences[node] = mismatch(self._slices.get(node, {}).values(), desired, node)
            if why:
                self.disturbed.add(node)
            self._changed.set()
