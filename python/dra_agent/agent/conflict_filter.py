"""Excludes devices that other drivers advertise too, and reports and saves these conflicts.

ConflictDetector detects other managers, and the publisher writes slices.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from dra_agent.agent.config import Config
from dra_agent.agent.device_state import DeviceState
from dra_agent.agent.host_ownership import other_agents
from dra_agent.conflicts import (
    ConflictGroup,
    DeviceConflicts,
    ForeignSlices,
    SavedConflicts,
    exclude,
    identities_of_host,
    load_conflicts,
    save_conflicts,
)
from dra_agent.conflicts.detector import ConflictDetector
from dra_agent.conflicts.shared_slices import SharedSliceReflector
from dra_agent.inventory.model import Device, Inventory
from dra_agent.kube_client import ApiClient
from dra_agent.kube_client.node_watch import NodeWatch
from dra_agent.status.events import SECOND_MANAGER, EventRecorder, ObjectReference
from dra_agent.supervisor import on_thread, supervisor
from dra_agent.thread_write import END_TIMEOUT_S

MAX_NAMES = 16
"""Devices that an Event names; it has room for about a thousand characters."""


class ConflictFilter:
    """Keeps devices of other drivers out of the published slices, from `start` to `stop`."""

    def __init__(
        self,
        config: Config,
        api: ApiClient,
        node_watch: NodeWatch,
        device_state: DeviceState,
        events: EventRecorder,
        *,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called on the loop when the devices of `inventory` change."""
        self._config = config
        self._device_state = device_state
        self._events = events
        self._changed = changed
        self._save_lock = threading.Lock()
        self._saves: set[asyncio.Future[None]] = set()
        """Those that have not ended."""
        self._detector = ConflictDetector(
            node_watch,
            self,
            node=config.node,
            driver=config.driver_name,
            conflicts=load_conflicts(config.state_dir).conflicts,
        )
        self._shared_slices = SharedSliceReflector(api, self._detector.slices)
        self._following: asyncio.Task[None] | None = None

    @property
    def slices(self) -> ForeignSlices:
        """The slices of other drivers; the caller's watch must keep those of the node current."""
        return self._detector.slices

    @property
    def devices(self) -> Sequence[Device]:
        """The devices of this host. See ConflictHost."""
        return self._device_state.inventory.devices

    @property
    def identities(self) -> frozenset[str]:
        """The identities of the host's PCI functions and of excluded devices. See ConflictHost."""
        return identities_of_host(self._device_state.functions, self._device_state.inventory.excluded)

    def other_agents(self) -> dict[str, str]:
        """Return the state directories of other agents, by driver. See ConflictHost."""
        return {agent.driver: agent.state_dir for agent in other_agents(self._config)}

    async def start(self) -> None:
        """Detect other drivers before anything is published, and continue to check. The watches must run."""
        if self._following is None:  # else this is the start after a failure
            self._following = supervisor().loop("shared slices", self._shared_slices.run)
        await self._detector.start()
        self._save()

    async def stop(self) -> None:
        """Stop checking; what was found is saved, unless the disk takes too long."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._detector.stop()
        if self._saves:
            await asyncio.wait(self._saves, timeout=END_TIMEOUT_S)

    def devices_changed(self) -> None:
        """Check new devices for conflicts."""
        self._detector.devices_changed()

    def inventory(self) -> Inventory:
        """Return the inventory to publish."""
        inventory = self._device_state.inventory
        return inventory if self._publishes else exclude(inventory, self._detector.conflicts)

    @property
    def _publishes(self) -> bool:
        return self._config.second_manager == "publish"

    def conflicts_changed(self, conflicts: DeviceConflicts) -> None:
        """Save and report new conflicts. See ConflictHost."""
        self._save()
        node = ObjectReference.node(self._config.node)
        for group in conflicts.groups():
            self._events.record(SECOND_MANAGER, node, event_note(group, published=self._publishes))
        self._changed()

    def _save(self) -> None:
        # A slow disk must not delay a response to the kubelet.
        save = supervisor().start_task("save conflicts", self._write_on_thread())
        self._saves.add(save)
        save.add_done_callback(self._saves.discard)

    async def _write_on_thread(self) -> None:
        await on_thread(self._write)

    def _write(self) -> None:
        with self._save_lock:  # so that the last write has the last result
            save_conflicts(self._config.state_dir, SavedConflicts(self._detector.conflicts, published=self._publishes))


def event_note(group: ConflictGroup, *, published: bool) -> str:
    """Return the note of the Event for devices that a manager advertises too."""
    names = group.names
    follows = "is still published by dra-agent" if published else "is not published by dra-agent"
    message = follows if len(names) == 1 else follows.replace("is ", "are ", 1)
    listed = ", ".join(names[:MAX_NAMES]) + (", ..." if len(names) > MAX_NAMES else "")
    return f"{group}, which {message}: {listed}"
