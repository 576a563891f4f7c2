"""Drain of a Kubernetes node: composition from slices, ledger, claims, pods and the Node object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dra_agent.inventory.model import Inventory
from dra_agent.kube_client.client import ApiClient
from dra_agent.kube_client.node_watch import NodeWatch
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.publish import Publisher
from dra_agent.reclaim.announcements import apply_taint
from dra_agent.reclaim.drain import DrainController, DrainReporter
from dra_agent.reclaim.progress_file import ProgressFile
from dra_agent.reclaim.release_tracker import ReleaseTracker
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.settings import ReclaimSettings
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.taint_rollout import TaintRollout
from dra_agent.status import EventRecorder

if TYPE_CHECKING:
    from dra_agent.reclaim.node_status import NodeStatusWriter
    from dra_agent.reclaim.pod_eviction import PodEviction


class NodeDrain:
    """The drain of one node, from `start` to `stop`. Lives on the event loop."""

    def __init__(
        self,
        settings: ReclaimSettings,
        api: ApiClient,
        reclaim: ReclaimService,
        ledger: JournalLedger,
        events: EventRecorder,
        *,
        node: str,
        node_watch: NodeWatch,
        driver: str,
        state_dir: Path,
        is_leader: Callable[[], bool],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_leader`: whether this agent acts, of several in a rolling update.

        `on_change` is called on the event loop when `is_unprepared` may have changed.
        """
        self._settings = settings
        self._api = api
        self._reclaim = reclaim
        self._ledger = ledger
        self._events = events
        self._node = node
        self._node_watch = node_watch
        self._driver = driver
        self._state_dir = state_dir
        self._is_leader = is_leader
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._controller: DrainController | None = None
        self._reporter: DrainReporter | None = None
        self._pods: PodEviction | None = None
        self._node_status: NodeStatusWriter | None = None
        self._refused_early: list[tuple[str, str, str]] | None = []
        """Claims that were refused before the start: UID, namespace, name. None after the start."""

    def inventory(self, untainted: Callable[[], Inventory]) -> Callable[[], Inventory]:
        """Return `untainted` with the taint of the current state on every device."""
        return lambda: apply_taint(untainted(), self._reclaim.state, self._driver)

    def prepared(self, claim: dict[str, Any]) -> None:
        """Record that a claim was prepared. Safe on any thread."""
        if self._pods is not None:
            self._pods.prepared(claim)

    def refused(self, claim: dict[str, Any]) -> None:
        """Record that a claim was not prepared because of the notice. Safe on any thread."""
        metadata = claim["metadata"]
        names = (str(metadata.get("uid", "")), str(metadata.get("namespace", "")), str(metadata.get("name", "")))
        self._loop.call_soon_threadsafe(self._track_refused, names)

    async def start(self, publisher: Publisher) -> None:
        """Act on changes from now on, and continue what an earlier run started."""
        from dra_agent.reclaim.node_status import NodeStatusWriter

        if self._settings.evict != "taint":
            from dra_agent.reclaim.pod_eviction import PodEviction

            self._pods = PodEviction(
                self._api,
                self._reclaim,
                self._ledger,
                mode=self._settings.evict,
                node=self._node,
                driver=self._driver,
                is_leader=self._is_leader,
            )
            self._pods.start()
        taints = TaintRollout(publisher, self._driver)
        node_status = self._node_status = NodeStatusWriter(
            self._api,
            taints,
            node=self._node,
            node_watch=self._node_watch,
            driver=self._driver,
            cordon=self._settings.cordon,
            is_leader=self._is_leader,
        )
        claims = ReleaseTracker(
            self._ledger,
            self._api,
            node=self._node,
            driver=self._driver,
            node_status=node_status,
            on_change=self._on_change,
        )
        reporter = self._reporter = DrainReporter(
            taints, self._reclaim, self._events, node=self._node, is_leader=self._is_leader
        )
        file = ProgressFile(self._state_dir, self._reclaim.state.boot, is_leader=self._is_leader)
        controller = self._controller = DrainController(taints, claims, reporter, pods=self._pods, file=file)
        self._reclaim.attach_drain(controller)
        self._reclaim.on_change(controller.changed)
        await controller.resume(self._reclaim.state, received_now=self._reclaim.notices > 0)
        refused_early, self._refused_early = self._refused_early or [], None
        for names in refused_early:
            controller.refused(*names)
        self._reclaim.on_change(node_status.changed)
        self._reclaim.on_change(self._state_changed)
        node_status.start(self._reclaim.state)

    @property
    def is_unprepared(self) -> bool:
        """Whether no claim of a notice is still prepared; True without a notice."""
        if self._controller is None or self._reclaim.state.phase != "notice":
            return True
        return all(record.is_unprepared for record in self._controller.progress.claims)

    def write_again(self) -> None:
        """Write the Node and the progress again: another agent has led meanwhile. Taints are the publisher's."""
        if self._controller is not None:
            self._controller.save_again()
        if self._node_status is not None:
            self._node_status.write_again()

    async def stop(self) -> None:
        """Stop all tasks; taints and state stay."""
        if self._controller is not None:
            await self._controller.stop()
        if self._reporter is not None:
            self._reporter.stop()
        if self._pods is not None:
            await self._pods.stop()
        if self._node_status is not None:
            await self._node_status.stop()

    async def _state_changed(self, before: ReclaimState, after: ReclaimState) -> None:
        del before, after
        self._on_change()

    def _track_refused(self, names: tuple[str, str, str]) -> None:
        if self._refused_early is not None:
            self._refused_early.append(names)
        elif self._controller is not None:
            self._controller.refused(*names)
