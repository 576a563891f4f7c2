"""Composition of Kubernetes mode: the kubelet requests claims, and the API server has their allocations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dra_agent.agent.config import Config
from dra_agent.agent.conflict_filter import ConflictFilter
from dra_agent.agent.device_state import DeviceState
from dra_agent.agent.feature_file import FeatureFile
from dra_agent.agent.leadership import Leadership
from dra_agent.agent.liveness import LivenessMonitor, MonitoredThread
from dra_agent.agent.node_labels import NodeLabels
from dra_agent.agent.preparer_stack import KubernetesStack
from dra_agent.agent.status_reporter import StatusReporter
from dra_agent.errors import AgentError
from dra_agent.inventory.model import Inventory
from dra_agent.kube_client.client import ApiClient, connect
from dra_agent.kube_client.kinds import RESOURCE_CLAIMS
from dra_agent.kube_client.node_watch import NodeWatch
from dra_agent.kubelet_plugin.plugin import KubeletPlugin
from dra_agent.kubelet_plugin.registration import RegistrationStatus
from dra_agent.kubelet_plugin.sockets import socket_paths
from dra_agent.prepare import Preparer
from dra_agent.prepare.ahead import prepared_ahead
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.publish import Publisher
from dra_agent.reclaim.claim_pods import PodClient
from dra_agent.reclaim.kubernetes import NodeDrain
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.settings import ReclaimSettings
from dra_agent.reclaim.signal import SignalSource
from dra_agent.status.orphaned_claims import OrphanedClaims
from dra_agent.status.release_socket import ReleaseSocket
from dra_agent.supervisor import supervisor

if TYPE_CHECKING:
    from dra_agent.agent.setup_taints import SetupTaints
    from dra_agent.binding.service import BindingService
    from dra_agent.metrics.registry import Metrics
    from dra_agent.reclaim.pod_notices import PodNotices
    from dra_agent.telemetry.claim_pods import ClaimPods

CONNECT_TIMEOUT_S = 30.0
"""Timeout of reading credentials; the server is not contacted for it."""

log = logging.getLogger(__name__)


class KubernetesMode:
    """See dra_agent.agent.mode.Mode."""

    def __init__(
        self,
        config: Config,
        thread: MonitoredThread,
        metrics: Metrics | None,
        *,
        liveness: LivenessMonitor,
        leadership: Leadership,
        on_status_change: Callable[[], None],
        claim_pods: ClaimPods | None = None,
        on_drain_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`leadership` decides which agent publishes.

        `on_status_change` is called when `status` has changed, `on_drain_change` when `draining` may have changed.
        `claim_pods` gets each claim that is read. Raises UsageError where no socket fits below the kubelet's directory.
        """
        self._config = config
        self._thread = thread
        self._leadership = leadership
        self._on_status_change = on_status_change
        self._on_drain_change = on_drain_change
        self._metrics = metrics
        self._claim_pods = claim_pods
        self._liveness = liveness
        self._api: asyncio.Future[ApiClient] = asyncio.get_running_loop().create_future()
        self._publisher: Publisher | None = None
        self._conflict_filter: ConflictFilter | None = None
        self._publishing: asyncio.Task[None] | None = None
        self._watched_node: NodeWatch | None = None
        self._watching_node: asyncio.Task[None] | None = None
        self._reporting: StatusReporter | None = None
        self._reclaim: ReclaimService | None = None
        self._drain: NodeDrain | None = None
        self._orphaned: OrphanedClaims | None = None
        self._release_socket: ReleaseSocket | None = None
        self._claims = _Claims(self._api, claim_pods, by_pod=config.reclaim.pod_notices)
        self._binding: BindingService | None = None
        self._setup_taints: SetupTaints | None = None
        self._labels: tuple[NodeLabels, FeatureFile] | None = None
        self._plugin = KubeletPlugin(
            socket_paths(config.kubelet_dir, config.driver_name, config.pod_uid),
            config.driver_name,
            self._claims,
            health=True,
            metrics=metrics,
            registered=self._registered,
        )

    async def open(self) -> None:
        """Register with the kubelet first, while the devices are still being scanned."""
        await self._plugin.open()
        self._api.set_result(
            await self._thread.run("reading credentials", CONNECT_TIMEOUT_S, lambda: connect(self._config.kubeconfig))
        )

    def signal_sources(self, settings: ReclaimSettings) -> Sequence[SignalSource]:
        """Return the Node object, whose taints may announce its removal."""
        if not settings.node_taints and not settings.node_conditions:
            return ()
        from dra_agent.reclaim.signals.node import NodeSource

        return (NodeSource(self._node_watch(), settings.node_taints, settings.node_conditions),)

    def attach_reclaim(self, reclaim: ReclaimService) -> None:
        """Attach it; `serve` starts to act on it."""
        self._reclaim = reclaim

    async def serve(self, preparer: Preparer, device_state: DeviceState, ledger: JournalLedger) -> None:
        """Let the kubelet's calls through, and publish the devices."""
        api = self._api.result()
        self._reporting = StatusReporter(self._config, api)
        self._reporting.start(device_state, ledger)
        assert self._reclaim is not None
        reclaim = self._reclaim
        drain = self._drain = NodeDrain(
            self._config.reclaim,
            api,
            self._reclaim,
            ledger,
            self._reporting.events,
            node=self._config.node,
            node_watch=self._node_watch(),
            driver=self._config.driver_name,
            state_dir=self._config.state_dir,
            is_leader=self._leadership.is_leader,
            on_change=self._on_drain_change,
        )
        self._conflict_filter = ConflictFilter(
            self._config,
            api,
            self._node_watch(),
            device_state,
            self._reporting.events,
            changed=self._published_devices_changed,
        )
        claims = self._orphaned = OrphanedClaims(
            api,
            ledger,
            device_state.host,
            device_state,
            self._reporting.events,
            driver=self._config.driver_name,
            confirm_after_s=self._config.claims.release_gone_after,
            claim_pods=self._claim_pods,
            is_leader=self._leadership.is_leader,
        )
        stack = KubernetesStack(
            monitor=self._liveness,
            metrics=self._metrics,
            reclaim=reclaim,
            ledger=ledger,
            drain=drain,
            orphaned=claims,
            status=self._reporting.status,
            events=self._reporting.events,
        )
        inventory = self._conflict_filter.inventory
        # An earlier run, with other rules, may have left claims that the kubelet never requested.
        if self._config.inventory.prepare_ahead or prepared_ahead(ledger):
            self._binding = self._bind_after_prepare(preparer, device_state, ledger, stack)
            inventory = self._binding.inventory(inventory)
        self._publisher = Publisher(
            api,
            node=self._config.node,
            driver=self._config.driver_name,
            inventory=drain.inventory(inventory),
            peers=self._leadership,
            failed=self._reporting.not_published,
            urgent=lambda: reclaim.state.phase == "notice",
            others=self._conflict_filter.slices,
            node_watch=self._node_watch(),
        )
        if self._metrics is not None:
            from dra_agent.metrics.api_server import PublishMetrics

            self._metrics.add(PublishMetrics(self._publisher.reading, api.requests))
            self._metrics.add(self._reporting.metrics())
        self._leadership.watch(self._leader_changed)
        self._publishing = supervisor().loop("publish", partial(self._publish, self._conflict_filter, self._publisher))
        if self._config.reclaim.pod_notices:
            from dra_agent.reclaim.pod_notices import PodNotices

            self._claims.pod_notices.set_result(PodNotices(PodClient(api), ledger, self._config.driver_name))
        requested = stack.requested(preparer)
        self._plugin.serve(requested, device_state.published_health)
        claims.start(partial(stack.release, preparer))
        await self._listen_to_operators(claims)
        self._labels = self._start_labels(api, device_state)
        await drain.start(self._publisher)
        if self._binding is not None and self._setup_taints is not None:
            self._setup_taints.attach(self._publisher)
            self._binding.start(follows_pods=bool(self._config.inventory.prepare_ahead))

    def _bind_after_prepare(
        self, preparer: Preparer, device_state: DeviceState, ledger: JournalLedger, stack: KubernetesStack
    ) -> BindingService:
        """Return the service for claims whose pods wait until they are prepared."""
        # Only here: no other configuration needs the modules.
        from dra_agent.agent.setup_taints import SetupTaints
        from dra_agent.binding.service import BindingService

        assert self._reporting is not None
        config = self._config
        self._setup_taints = SetupTaints(self._thread, device_state, config.driver_name, self.devices_changed)
        return BindingService(
            self._api.result(),
            ledger,
            stack.ahead(preparer),
            preparer.check,
            self._setup_taints,
            self._reporting.events,
            node=config.node,
            driver=config.driver_name,
            timeout_s=config.claims.prepare_ahead_timeout,
            is_leader=self._leadership.is_leader,
            changed=self._published_devices_changed,
            refusal=self._refusal,
            completed=self._claims.with_requests_of_pods,
        )

    def _refusal(self) -> str:
        """Return why the node takes no new claims; empty where it takes them."""
        assert self._reclaim is not None
        return "the node is being reclaimed" if self._reclaim.state.phase == "notice" else ""

    def _start_labels(self, api: ApiClient, device_state: DeviceState) -> tuple[NodeLabels, FeatureFile]:
        """Start both ways to label the Node: the one that is not selected removes what an earlier run left."""
        config = self._config

        def inventory() -> Inventory:
            return device_state.inventory

        on_node = NodeLabels(
            api,
            self._node_watch(),
            node=config.node,
            driver=config.driver_name,
            is_wanted=config.node_labels == "node",
            inventory=inventory,
            is_leader=self._leadership.is_leader,
        )
        in_file = FeatureFile(
            config.nfd_features_dir,
            driver=config.driver_name,
            is_wanted=config.node_labels == "nfd",
            inventory=inventory,
            is_leader=self._leadership.is_leader,
        )
        on_node.start()
        in_file.start()
        return on_node, in_file

    async def _listen_to_operators(self, claims: OrphanedClaims) -> None:
        listening = ReleaseSocket(self._config.state_dir, claims)
        try:
            await listening.start()
        except AgentError as error:
            # On a read-only state directory prepared claims are still served.
            log.error("operators cannot reach the agent about claims", extra={"reason": str(error)})
        else:
            self._release_socket = listening

    def devices_changed(self) -> None:
        """Notify the conflict filter, the publisher and the reporter of Events that devices changed."""
        if self._conflict_filter is not None:
            self._conflict_filter.devices_changed()
        if self._publisher is not None:
            self._publisher.devices_changed()
        if self._reporting is not None:
            self._reporting.devices_changed()
        self._check_labels()

    def _check_labels(self) -> None:
        for labels in self._labels or ():
            labels.check()

    @property
    def status(self) -> str:
        """The state of the registration with the kubelet, as text."""
        return str(self._plugin.state)

    @property
    def failures(self) -> list[str]:
        """Why the kubelet cannot call, or slices cannot be published: a rolling update must not continue then."""
        failures = list(self._plugin.failures)
        if self._publisher is None:
            return failures
        if (refused := self._publisher.refused) is not None:
            failures.append(f"slices cannot be published: {refused}")
        elif (reason := self._publisher.standby_reason) is not None:
            failures.append(f"an older agent of this node still publishes, this one cannot yet: {reason}")
        return failures

    @property
    def hung_calls(self) -> list[str]:
        """Claims that hang in a vendor's library."""
        return self._plugin.in_flight

    @property
    def draining(self) -> bool:
        """True while the kubelet has claims to unprepare; of several agents only the leader waits for it."""
        return self._drain is not None and self._leadership.is_leader() and not self._drain.is_unprepared

    async def close(self) -> None:
        """Stop serving, then close connections."""
        if self._release_socket is not None:
            await self._release_socket.stop()
        if self._orphaned is not None:
            await self._orphaned.stop()
        if self._binding is not None:
            await self._binding.stop()
        for labels in self._labels or ():
            await labels.stop()
        if self._drain is not None:
            await self._drain.stop()
        for task in (self._publishing, self._watching_node):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._conflict_filter is not None:
            await self._conflict_filter.stop()
        self._leadership.resign()
        if self._publisher is not None:
            await self._publisher.stop()
        await self._plugin.close()
        if self._reporting is not None:
            await self._reporting.stop()
        if self._api.done():
            await self._api.result().close()

    def _registered(self, state: RegistrationStatus) -> None:
        if state.done and self._publisher is not None:
            self._publisher.kubelet_registered()
        self._on_status_change()

    async def _publish(self, guard: ConflictFilter, publisher: Publisher) -> None:
        # Claims can be prepared now: they do not depend on published slices.
        publisher.follow()
        await guard.start()
        if self._binding is not None and self._config.inventory.prepare_ahead:
            await self._binding.wait_known()
        await publisher.start()

    def _node_watch(self) -> NodeWatch:
        """Return the watch of the Node, which runs from the first call on."""
        if self._watched_node is None:
            self._watched_node = NodeWatch(self._api.result(), self._config.node)
            self._watching_node = supervisor().loop("node watch", self._watched_node.run)
        return self._watched_node

    def _published_devices_changed(self) -> None:
        if self._publisher is not None:
            self._publisher.devices_changed()

    def _leader_changed(self, leads: bool) -> None:
        self._on_drain_change()
        if leads:
            self._published_devices_changed()
            self._check_labels()
            if self._drain is not None:
                self._drain.write_again()


class _Claims:
    """Claims from the API server, once connected."""

    def __init__(self, api: asyncio.Future[ApiClient], claim_pods: ClaimPods | None, *, by_pod: bool = False) -> None:
        """`by_pod`: pods can request the notice file, as soon as `pod_notices` has a result."""
        self._api = api
        self._claim_pods = claim_pods
        self._by_pod = by_pod
        self.pod_notices: asyncio.Future[PodNotices] = asyncio.get_running_loop().create_future()

    async def claim(self, namespace: str, name: str, timeout: float) -> dict[str, Any]:
        if not self._api.done():
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._api)
        claim = await self._api.result().get(RESOURCE_CLAIMS, name, namespace, timeout=timeout)
        self._seen(claim)
        async with asyncio.timeout(timeout):
            return await self.with_requests_of_pods(claim)

    async def with_requests_of_pods(self, claim: dict[str, Any]) -> dict[str, Any]:
        """Return the claim with the configuration that its pods request."""
        return await (await asyncio.shield(self.pod_notices)).apply(claim) if self._by_pod else claim

    def claim_on_thread(self, namespace: str, name: str, timeout: float) -> dict[str, Any] | None:
        if not self._api.done() or self._by_pod:
            return None  # pods are read on the event loop
        claim = self._api.result().get_on_thread(RESOURCE_CLAIMS, name, namespace, timeout=timeout)
        if claim is not None:
            self._seen(claim)
        return claim

    def _seen(self, claim: dict[str, Any]) -> None:
        if self._claim_pods is not None:
            self._claim_pods.seen(claim)
