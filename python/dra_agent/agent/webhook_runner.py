"""Runs the admission webhook, from start to SIGTERM."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dra_agent import __version__
from dra_agent.agent.config import Config, listen_address
from dra_agent.agent.setup_registry import known_setups
from dra_agent.agent.signals import Signals
from dra_agent.server_certificate import ReloadingCertificate
from dra_agent.webhook.admission import review
from dra_agent.webhook.clients import ClientRule
from dra_agent.webhook.server import Webhook

if TYPE_CHECKING:
    from dra_agent.metrics.webhook import WebhookMetrics

log = logging.getLogger(__name__)


class Tls(NamedTuple):
    """The webhook's certificate and the requirements for its clients."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """The authority of clients' certificates; without it clients need none."""
    client_names: tuple[str, ...] = ()
    """Names of which a client's certificate must have one; empty: any name."""


async def serve(
    address: tuple[str, int],
    tls: Tls,
    config: Config,
    signals: Signals,
    reload: Callable[[], None],
) -> None:
    """Serve reviews of the configuration of its driver; raises UsageError if it cannot start."""
    driver = config.driver_name
    stop = asyncio.Event()
    setups = known_setups()
    with ExitStack() as stack:
        stack.enter_context(signals.attach(stop.set, reload))
        shown = ReloadingCertificate(tls.certificate, tls.key, tls.client_ca)
        clients = ClientRule(required=tls.client_ca is not None, names=tls.client_names)
        metrics = _metrics(stack, shown, config) if config.metrics_address else None
        webhook = Webhook(address, shown, lambda body: review(body, driver, setups), metrics, clients)
        await webhook.start()
        if metrics is not None:
            metrics.of(webhook)
        log.info("answering admission reviews", extra={"port": webhook.port, "driver": driver, "version": __version__})
        signals.disable_exit_timer()
        await stop.wait()
        await webhook.close()
    log.info("stopped")


def _metrics(stack: ExitStack, certificate: ReloadingCertificate, config: Config) -> WebhookMetrics:
    from dra_agent.metrics.access import EndpointAccess
    from dra_agent.metrics.http_server import HttpServer
    from dra_agent.metrics.webhook import WebhookMetrics

    metrics = WebhookMetrics(certificate)
    access = EndpointAccess(config.metrics_tls_cert, config.metrics_tls_key, config.metrics_token_file)
    address = listen_address(config.metrics_address)
    server = HttpServer(address, render=metrics.render, healthy=list, ready=list, access=access)
    server.start()
    stack.callback(server.close)
    log.info("answering /metrics", extra={"port": server.port})
    return metrics
