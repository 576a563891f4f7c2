"""The life of the admission webhook: its parts put together, from start to SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from dra_agent import __version__
from dra_agent.agent.setups import known_setups
from dra_agent.webhook.admission import judge
from dra_agent.webhook.certificate import Certificate
from dra_agent.webhook.server import Webhook

if TYPE_CHECKING:
    from dra_agent.agent.webhook_metrics import WebhookMetrics

log = logging.getLogger(__name__)


async def serve(
    address: tuple[str, int], certificate: Path, key: Path, driver: str, metrics_address: tuple[str, int] | None = None
) -> None:
    """Answer reviews of configuration for a driver; UsageError where it cannot start."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    setups = known_setups()
    shown = Certificate(certificate, key)
    with ExitStack() as stack:
        metrics = _metrics(stack, shown, metrics_address) if metrics_address is not None else None
        webhook = Webhook(address, shown, lambda body: judge(body, driver, setups), metrics)
        await webhook.start()
        if metrics is not None:
            metrics.of(webhook)
        log.info("answering admission reviews", extra={"port": webhook.port, "driver": driver, "version": __version__})
        await stop.wait()
        await webhook.close()
    log.info("stopped")


def _metrics(stack: ExitStack, certificate: Certificate, address: tuple[str, int]) -> WebhookMetrics:
    from dra_agent.agent.http import HttpServer
    from dra_agent.agent.webhook_metrics import WebhookMetrics

    metrics = WebhookMetrics(certificate)
    server = HttpServer(address, render=metrics.render, healthy=list, ready=list)
    server.start()
    stack.callback(server.close)
    log.info("answering /metrics", extra={"port": server.port})
    return metrics
