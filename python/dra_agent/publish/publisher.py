"""Publishes the devices of this node as ResourceSlices, and keeps them published."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dra_agent.conflicts import ForeignSlices
from dra_agent.errors import AgentError
from dra_agent.inventory.model import Inventory
from dra_agent.kube_client import ApiClient, ForbiddenError, UnauthorizedError
from dra_agent.kube_client.node_watch import NodeWatch
from dra_agent.publish.access import NodeOwnerReference, Peers, WriteAccess
from dra_agent.publish.feature_gates import Gates
from dra_agent.publish.plan import PublishContext
from dra_agent.publish.pool import PoolReconciler
from dra_agent.publish.reflector import SliceReflector
from dra_agent.publish.slice_store import ChangedSlice, SliceStore
from dra_agent.publish.stats import PublisherCounters, PublisherStats
from dra_agent.slices import Slice
from dra_agent.supervisor import supervisor

log = logging.getLogger(__name__)


class Publisher:
    """Writes the ResourceSlices of this node whenever its devices change, from `start` to `stop`.

    All methods belong on the event loop; `reading` may be called from any thread.
    After `stop` the slices remain: the next agent adopts them, and the kubelet removes them when none comes.
    """

    def __init__(
        self,
        api: ApiClient,
        *,
        node: str,
        driver: str,
        inventory: Callable[[], Inventory],
        is_leader: Callable[[], bool] = lambda: True,
        peers: Peers | None = None,
        failed: Callable[[AgentError], None] = lambda error: None,
        urgent: Callable[[], bool] = lambda: False,
        others: ForeignSlices | None = None,
        node_watch: NodeWatch | None = None,
    ) -> None:
        """`inventory` returns the current devices; `is_leader` whether this instance is the leader.

        Of several agents of one driver on one node (during a rolling update) only one writes: `peers` selects it, and
        is informed whether this one can write. `is_leader` and `peers` are checked before every write and, while the
        result is no, every second. `failed` is called for every failure, and must not block. While `urgent` returns
        True, requests to an unavailable API server are retried within about a second. `others` receives the slices of
        other drivers of the node. `node_watch` saves reads of the Node, which owns the slices.
        """
        self._node = node
        self._inventory = inventory
        self._watchers: list[Callable[[], None]] = []
        self._published = SliceStore(self._notify)
        self._ownership = NodeOwnerReference(api, node, node_watch)
        self._tally = PublisherCounters(failed)
        self._following = SliceReflector(
            api,
            self._published,
            node=node,
            driver=driver,
            others=others,
            on_external_change=self._disturbed,
            caught_up=self._caught_up,
            urgent=urgent,
        )
        self._urgent = urgent
        self._peers = peers
        self._access: WriteAccess | None = None
        if peers is not None:
            self._access = WriteAccess(
                api,
                node=node,
                driver=driver,
                peers=peers,
                following=self._following,
                published=self._published,
                ownership=self._ownership,
            )
        self._context = PublishContext(
            api=api,
            node=node,
            driver=driver,
            inventory=inventory,
            is_leader=is_leader if peers is None else lambda: is_leader() and peers.is_leader(),
            urgent=urgent,
            published=self._published,
            following=self._following,
            ownership=self._ownership,
            gates=Gates(),
            tally=self._tally,
            access=self._access,
        )
        self._pools: dict[str, PoolReconciler] = {}
        self._follow: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._running = False

    def follow(self) -> None:
        """Start to follow the slices of the node without a write; `start` does it otherwise."""
        if self._follow is None:
            self._follow = supervisor().loop("publish follow", self._following.run)

    async def start(self) -> None:
        """Start; returns at once. Slices are written after the first list."""
        is_again, self._running = self._running, True
        self.follow()
        if self._access is not None and not is_again:
            self._tasks.append(supervisor().loop("publish access", self._access.run))
        self.devices_changed()

    async def stop(self) -> None:
        """Stop writing. A write that is on its way may still happen."""
        self._running = False
        tasks, self._tasks = self._tasks, []
        if self._follow is not None:
            tasks.append(self._follow)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def devices_changed(self) -> None:
        """Publish the current inventory where it differs."""
        self._create_missing_pools()
        for pool in self._pools.values():
            pool.enqueue()
        if self._urgent():
            self._following.expedite()
        self._notify()

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after every change of the published slices, and of the devices. It must not block."""
        self._watchers.append(changed)

    def kubelet_registered(self) -> None:
        """The kubelet has registered the driver. After a restart it deletes the node's slices.

        They are created again as soon as the watch reports it; this call resets the delay.
        """
        for pool in self._pools.values():
            pool.reset_backoff()

    def slices(self) -> list[Slice]:
        """Return the published slices, as last reported by the API server."""
        return [found for pool in self._published.pools() for found in self._published.slices(pool)]

    def device_names(self) -> set[str]:
        """Return the names of the devices that the slices should have."""
        return {device.name for device in self._inventory().devices}

    @property
    def refused(self) -> AgentError | None:
        """The permanent authorization error of the API server, if any: nothing is published until it is resolved."""
        errors = [self._following.error, *(pool.error for pool in tuple(self._pools.values()))]
        return next((error for error in errors if isinstance(error, ForbiddenError | UnauthorizedError)), None)

    @property
    def standby_reason(self) -> str | None:
        """Why an older agent of the node writes and this one does not yet; None where that is not so."""
        if self._access is None or self._peers is None or self._access.able or not self._peers.has_able_elder():
            return None
        return str(self._access.reason or "the slices are not listed yet")

    def reading(self) -> PublisherStats:
        """Return the statistics."""
        pools = tuple(self._pools.values())
        problems = [str(pool.error) for pool in pools if pool.error is not None]
        problems += [
            str(error) for error in (*self._tally.gates_off.values(), *self._tally.unsupported_taints.values())
        ]
        if self._following.error is not None:
            problems.append(str(self._following.error))
        return PublisherStats(
            writes=dict(self._tally.writes),
            errors=dict(self._tally.errors),
            slices=len(self._published),
            pending=tuple(pool.name for pool in pools if not pool.settled),
            last_write=self._tally.last_write,
            lag_s=self._following.lag_s,
            unpublishable=sum(len(pool.problems) for pool in pools),
            problems=tuple(dict.fromkeys(problems)),
        )

    def _notify(self) -> None:
        for changed in self._watchers:
            changed()

    def _caught_up(self) -> None:
        """The first list, or one after a failure: the server may be newer and support more fields."""
        self._context.gates.reset_off()
        self._tally.unsupported_taints.clear()
        if self._access is not None:
            self._access.wake()
        self.devices_changed()

    def _create_missing_pools(self) -> None:
        """Every pool that has devices or slices gets a task; one that has lost both keeps it, idle."""
        if not self._running:
            return
        names = {device.pool(self._node) for device in self._inventory().devices}
        for name in sorted((names | self._published.pools()) - self._pools.keys()):
            pool = self._pools[name] = PoolReconciler(self._context, name)
            self._tasks.append(supervisor().loop("publish pool", pool.run, of=name))

    def _disturbed(self, touched: set[ChangedSlice]) -> None:
        self._create_missing_pools()
        self._ownership.invalidate()
        for name, pool in self._pools.items():
            if slices := {found.slice for found in touched if found.pool == name}:
                pool.on_external_change(slices)
