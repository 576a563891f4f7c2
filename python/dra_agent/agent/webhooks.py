"""The life of the admission webhook: its parts put together, from start to SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

from dra_agent import __version__
from dra_agent.agent.setups import known_setups
from dra_agent.webhook.admission import judge
from dra_agent.webhook.certificate import Certificate
from dra_agent.webhook.server import Webhook

log = logging.getLogger(__name__)


async def serve(address: tuple[str, int], certificate: Path, key: Path, driver: str) -> None:
    """Answer reviews of configuration for a driver; UsageError where it cannot start."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    setups = known_setups()
    webhook = Webhook(address, Certificate(certificate, key), lambda body: judge(body, driver, setups))
    await webhook.start()
    log.info("answering admission reviews", extra={"port": webhook.port, "driver": driver, "version": __version__})
    await stop.wait()
    await webhook.close()
    log.info("stopped")
