"""What an agent reports about itself and its devices: probes, metrics and telemetry.

Modules of what the configuration turns off are not imported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from dra_agent.agent import logs
from dra_agent.agent.closing import ClosingStack
from dra_agent.agent.config import Config, listen_address
from dra_agent.agent.device_state import DeviceState
from dra_agent.agent.liveness import LivenessMonitor
from dra_agent.agent.parts import Parts
from dra_agent.agent.readiness import Readiness
from dra_agent.agent.reload import Reload
from dra_agent.errors import AgentError, UsageError
from dra_agent.health.monitor import Summary
from dra_agent.inventory.model import Inventory
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.supervisor import supervisor

if TYPE_CHECKING:
    from dra_agent.metrics.registry import Metrics
    from dra_agent.telemetry.claim_pods import ClaimPods

log = logging.getLogger(__name__)

MAX_EXPOSITION_BYTES = 8 << 20
"""Bytes of one response on the control socket."""


class Observability:
    """The servers and threads of one agent that report, as configured."""

    def __init__(
        self,
        config: Config,
        parts: Parts,
        reload: Reload,
        liveness: LivenessMonitor,
        readiness: Readiness,
        closing: ClosingStack,
    ) -> None:
        self._config = config
        self._parts = parts
        self._reload = reload
        self._liveness = liveness
        self._readiness = readiness
        self._closing = closing
        self.metrics: Metrics | None = None
        """The metrics of requests; None if none are wanted."""
        self.claim_pods: ClaimPods | None = None
        """Which pods use a claim; None without telemetry, or without a kubelet."""

    def serve(self) -> None:
        """Serve probes and metrics; before the start has any part."""
        config = self._config
        if config.telemetry.interval and not config.standalone:
            from dra_agent.telemetry.claim_pods import ClaimPods

            self.claim_pods = ClaimPods()
        if config.health_address:
            self._serve_probes()
        if config.metrics_address:
            self.metrics = self._collect()
            self._serve_metrics(self.metrics)

    def exposition(self) -> str:
        """Return the text of /metrics, cut to MAX_EXPOSITION_BYTES; UsageError where no metrics are collected."""
        if self.metrics is None:
            raise UsageError("no metrics address is configured")
        text, _ = self.metrics.render()
        if len(text) > MAX_EXPOSITION_BYTES:
            text = text[: text.rindex(b"\n", 0, MAX_EXPOSITION_BYTES) + 1]
        return text.decode(errors="replace")

    async def sample(self, device_state: DeviceState, ledger: JournalLedger, is_newest: Callable[[], bool]) -> None:
        """Start telemetry if it is configured; `is_newest` is true for the agent of a rolling update that samples."""
        config = self._config
        if not config.telemetry.interval:
            return
        from dra_agent.telemetry.control import TelemetryServer
        from dra_agent.telemetry.sampler import Sampler

        sampler = Sampler(
            device_state.host,
            config.state_dir,
            device_state.host.boot_id(),
            config.telemetry.interval,
            inventory=lambda: device_state.inventory,
            xids=lambda: device_state.monitor.xids,
            entries=ledger.entries,
            pods=dict if self.claim_pods is None else self.claim_pods.uids,
            standalone=config.standalone,
            is_newest=is_newest,
        )
        if self.metrics is not None:
            from dra_agent.metrics.telemetry import TelemetryMetrics

            self.metrics.add(
                TelemetryMetrics(
                    sampler.snapshot,
                    lambda: device_state.inventory,
                    config.node,
                    lambda: {entry.uid for entry in self._parts.prepared()},
                    claim_labels=config.names_claims_in_metrics,
                    pods=self.claim_pods if config.telemetry.claim_pods else None,
                    containers=self._list_containers(),
                )
            )
        self._closing.add("telemetry", sampler.stop)
        sampler.start()
        server = TelemetryServer(
            config.state_dir,
            config.node,
            config.telemetry.interval,
            sampler.snapshot,
            lambda: device_state.inventory,
            ledger.entries,
        )
        self._closing.stack.push_async_callback(server.stop)
        try:
            await server.start()
        except AgentError as error:
            # Metrics still have the values, and claims are served.
            log.error("`dra-agent top` cannot reach the agent", extra={"reason": str(error)})

    def _serve_probes(self) -> None:
        from dra_agent.metrics.http_server import HttpServer

        server = HttpServer(
            listen_address(self._config.health_address),
            healthy=self._liveness.failures,
            ready=self._readiness.failures,
            flag="--health-address",
        )
        server.start()
        self._closing.add("the HTTP server of probes", server.close)
        log.info("answering probes", extra={"probes": server.port})

    def _serve_metrics(self, metrics: Metrics) -> None:
        from dra_agent.metrics.access import EndpointAccess
        from dra_agent.metrics.http_server import HttpServer

        config = self._config
        server = HttpServer(
            listen_address(config.metrics_address),
            render=metrics.render,
            healthy=self._liveness.failures,
            ready=self._readiness.failures,
            access=EndpointAccess(config.metrics_tls_cert, config.metrics_tls_key, config.metrics_token_file),
        )
        server.start()
        self._closing.add("the HTTP server of metrics", server.close)
        log.info("answering /metrics, /healthz and /readyz", extra={"port": server.port})

    def _collect(self) -> Metrics:
        from dra_agent.metrics.allocatable import AllocatableTracker
        from dra_agent.metrics.config import ConfigMetrics
        from dra_agent.metrics.liveness import LivenessMetrics
        from dra_agent.metrics.process import ProcessMetrics
        from dra_agent.metrics.registry import Metrics
        from dra_agent.metrics.snapshot import MetricsSnapshot, collect

        tracker = AllocatableTracker()

        def read() -> MetricsSnapshot:
            device_state, reclaim = self._parts.device_state, self._parts.reclaim
            return collect(
                self._config.state_dir,
                self._config.node,
                inventory=Inventory() if device_state is None else device_state.inventory,
                health=Summary() if device_state is None else device_state.monitor.summary,
                ledger=self._parts.ledger,
                reclaim=None if reclaim is None else reclaim.service,
                tracker=tracker,
                driver=self._config.driver_name,
            )

        def configuration() -> tuple[bool, float, int]:
            status = self._reload.status
            return status.successful, status.loaded_at, status.checksum

        metrics = Metrics(read)
        metrics.add(ConfigMetrics(configuration))
        metrics.add(LivenessMetrics(self._liveness.failures))
        metrics.add(ProcessMetrics(supervisor().failures, logs.dropped_lines))
        return metrics

    def _list_containers(self) -> Callable[[], list[tuple[str, str, str, str]]] | None:
        """Return what lists the containers of prepared claims; None unless they are wanted, and there is a kubelet."""
        config = self._config
        if config.standalone or not config.telemetry.claim_containers:
            return None
        from dra_agent.kubelet_plugin.pod_resources import ClaimContainers

        containers = ClaimContainers(config.kubelet_dir, config.telemetry.interval)
        self._closing.add("containers of claims", containers.stop)
        containers.start()
        return lambda: containers.of({(entry.namespace, entry.name) for entry in self._parts.prepared()})
