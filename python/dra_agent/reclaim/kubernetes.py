"""Drain of a node of a cluster: composition from slices, ledger, claims and Events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dra_agent.inventory import Inventory
from dra_agent.kube_client.client import ApiClient
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.publish import Publisher
from dra_agent.reclaim.announcements import apply_taint
from dra_agent.reclaim.drain import DrainController, What
from dra_agent.reclaim.release_tracker import ClaimSource, ReleaseTracker
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.settings import ReclaimSettings
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.state_file import ProgressFile
from dra_agent.status import EventRecorder, ObjectReference
from dra_agent.status.events import (
    CLAIMS_NOT_RELEASED,
    CLAIMS_RELEASED,
    RECLAIM_CANCELLED,
    RECLAIM_HINT,
    RECLAIM_NOTICE,
)

if TYPE_CHECKING:
    from dra_agent.reclaim.node_status import NodeStatusWriter
    from dra_agent.reclaim.pod_eviction import PodEviction

log = logging.getLogger(__name__)

AFTER_TAINTS_TIMEOUT_S = 0.5
"""Seconds for which the Node's condition and Event wait for the taints, at most."""
_REASONS = {
    "hint": RECLAIM_HINT,
    "notice": RECLAIM_NOTICE,
    "cancelled": RECLAIM_CANCELLED,
    "released": CLAIMS_RELEASED,
    "kept": CLAIMS_NOT_RELEASED,
}


class NodeDrain:
    """What a reclaim does to the devices and claims of a node."""

    def __init__(
        self,
        settings: ReclaimSettings,
        api: ApiClient,
        reclaim: ReclaimService,
        ledger: JournalLedger,
        events: EventRecorder,
        *,
        node: str,
        driver: str,
        state_dir: Path,
        is_leader: Callable[[], bool],
    ) -> None:
        """`is_leader`: whether this is the agent that acts, of several in a rolling update."""
        self._api = api
        self._is_leader = is_leader
        self._settings = settings
        self._node_name = node
        self._driver = driver
        self._state_dir = state_dir
        self._reclaim = reclaim
        self._ledger = ledger
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._whole: Callable[[], Inventory] = Inventory
        self._moving: PodEviction | None = None
        self.sequence: DrainController | None = None
        self._node: NodeStatusWriter | None = None
        self._waiting: set[asyncio.Task[None]] = set()
        self._early: list[tuple[str, str, str]] | None = []
        """Claims that were refused before the drain started: uid, namespace, name. None: it has started."""
        self._untold: list[str] = []
        """Notices with an Event that waits for the taints."""

    def inventory(self, whole: Callable[[], Inventory]) -> Callable[[], Inventory]:
        """Have devices published with the taint of the moment."""
        self._whole = whole
        return lambda: apply_taint(whole(), self._reclaim.state, self._driver)

    def prepared(self, claim: dict[str, Any]) -> None:
        """On a thread of the preparer."""
        if self._moving is not None:
            self._moving.prepared(claim)

    def refused(self, claim: dict[str, Any]) -> None:
        """On a thread of the preparer."""
        metadata = claim["metadata"]
        names = (str(metadata.get("uid", "")), str(metadata.get("namespace", "")), str(metadata.get("name", "")))
        self._loop.call_soon_threadsafe(self._follow, names)

    def _follow(self, names: tuple[str, str, str]) -> None:
        if self._early is not None:
            self._early.append(names)
        elif self.sequence is not None:
            self.sequence.refused(*names)

    async def start(self, publisher: Publisher, claims: ClaimSource) -> None:
        """Act on changes from now on, and continue what an earlier run started."""
        if self._settings.evict != "taint":
            from dra_agent.reclaim.pod_eviction import PodEviction

            self._moving = PodEviction(
                self._api,
                self._reclaim,
                self._ledger.entries,
                claims,
                mode=self._settings.evict,
                node=self._node_name,
                driver=self._driver,
                active=self._is_leader,
            )
            self._moving.start()
        moving = self._moving
        sequence = self.sequence = DrainController(
            driver=self._driver,
            publish=publisher.devices_changed,
            published=publisher.slices,
            wanted=lambda: [device.name for device in self._whole().devices],
            release=lambda: self._release_of(claims),
            released=self._reclaim.released,
            tell=self._tell,
            evict=None if moving is None else moving.evict,
            evictions=dict if moving is None else moving.counts,
            file=ProgressFile(self._state_dir, self._reclaim.state.boot, newest=self._is_leader),
            ahead=_nobody if moving is None else moving.ahead,
        )
        self._reclaim.progress = lambda: sequence.progress
        self._reclaim.on_change(sequence.changed)
        await sequence.resume(self._reclaim.state, news=self._reclaim.notices > 0)
        early, self._early = self._early or [], None
        for names in early:
            sequence.refused(*names)
        self._on_the_node(sequence)

    @property
    def given_back(self) -> bool:
        """Whether no claim of a notice is still prepared; True without a notice."""
        if self.sequence is None or self._reclaim.state.phase != "notice":
            return True
        return all(record.given_back for record in self.sequence.progress.claims)

    async def stop(self) -> None:
        """Watch no more; taints and state stay."""
        if self.sequence is not None:
            await self.sequence.stop()
        for task in self._waiting:
            task.cancel()
        if self._moving is not None:
            await self._moving.stop()
        if self._node is not None:
            await self._node.stop()

    def _on_the_node(self, sequence: DrainController) -> None:
        from dra_agent.reclaim.node_status import NodeStatusWriter

        node = self._node = NodeStatusWriter(
            self._api,
            node=self._node_name,
            driver=self._driver,
            cordon=self._settings.cordon,
            active=self._is_leader,
            first=lambda: sequence.tainted(AFTER_TAINTS_TIMEOUT_S),
        )
        self._reclaim.on_change(node.changed)
        node.start(self._reclaim.state)

    def _release_of(self, claims: ClaimSource) -> ReleaseTracker:
        node, driver = self._node_name, self._driver
        return ReleaseTracker(self._ledger.entries, claims, node=node, driver=driver, named=self._named_claim)

    def _named_claim(self) -> None:
        if self._node is not None:
            self._node.named_claim()

    def _tell(self, what: What, note: str) -> None:
        level = logging.WARNING if what in ("notice", "kept") else logging.INFO
        log.log(level, "reclaim of the node", extra={"what": what, "note": note})
        if what == "notice" and self.sequence is not None:
            self._untold.append(note)
            task = asyncio.create_task(self._after_taints(self.sequence), name="reclaim event")
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
        else:
            self._tell_of_notices()
            self._record(what, note)

    def _tell_of_notices(self) -> None:
        notes, self._untold = self._untold, []
        for note in notes:
            self._record("notice", note)

    def _record(self, what: What, note: str) -> None:
        if self._is_leader():
            self._events.record(_REASONS[what], ObjectReference.node(self._node_name), note)

    async def _after_taints(self, sequence: DrainController) -> None:
        await sequence.tainted(AFTER_TAINTS_TIMEOUT_S)
        self._tell_of_notices()


def _nobody(state: ReclaimState) -> None:
    """No eviction precedes the taint."""
