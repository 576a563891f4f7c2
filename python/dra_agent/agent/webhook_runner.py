"""Runs the admission webhook, from start to SIGTERM."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dra_agent import __version__
from dra_agent.agent.setup_registry import known_setups
from dra_agent.agent.signals import Signals
from dra_agent.webhook.admission import review
from dra_agent.webhook.certificate import ReloadingCertificate
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
    driver: str,
    metrics_address: tuple[str, int] | None,
    signals: Signals,
    reload: Callable[[], None],
) -> None:
    """Serve reviews of a driver's configuration; raises UsageError if it cannot start."""
    stop = asyncio.Event()
    setups = known_setups()
    with ExitStack() as stack:
        stack.enter_context(signals.attach(stop.set, reload))
        shown = ReloadingCertificate(tls.certificate, tls.key, tls.client_ca)
        clients = ClientRule(required=tls.client_ca is not None, names=tls.client_names)
        metrics = _metrics(stack, shown, metrics_address) if metrics_address is not None else None
        webhook = Webhook(address, shown, lambda body: review(body, driver, setups), metrics, clients)
        await webhook.start()
        if metrics is not None:
            metrics.of(webhook)
        log.info("answering admission reviews", extra={"port": webhook.port, "driver": driver, "version": __version__})
        signals.disable_exit_timer()
        await stop.wait()
        await webhook.close()
    log.info("stopped")


def _metrics(stack: ExitStack, certificate: ReloadingCertificate, address: tuple[str, int]) -> WebhookMetrics:
    from dra_agent.metrics.http_server import HttpServer
    from dra_agent.metrics.webhook import WebhookMetrics

    metrics = WebhookMetrics(certificate)
    server = HttpServer(address, render=metrics.render, healthy=list, ready=list)
    server.start()
    stack.callback(server.close)
    log.info("answering /metrics", extra={"port": server.port})
    return metrics
