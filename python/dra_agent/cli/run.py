"""`dra-agent run`: the agent itself, in the foreground."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    from dra_agent.agent.config import add_flags

    add_flags(parser)


def _end(number: int, frame: object) -> None:
    raise SystemExit(0)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT."""
    import signal

    # The first process of a container ignores SIGTERM until somebody handles it: one that is told to stop while it
    # still starts would be waited for until it is killed.
    signal.signal(signal.SIGTERM, _end)
    import asyncio
    import logging
    import os

    from dra_agent.agent import logs
    from dra_agent.agent.config import load

    config = load(args)
    logs.set_up(config.log_level, config.log_format)
    from dra_agent.agent.life import Agent

    async def live() -> list[str]:
        agent = Agent(config)
        await agent.run()
        return agent.stuck

    stuck = asyncio.run(live())
    if stuck:
        # The interpreter would wait for the thread for ever. Everything of ours is closed and on disk.
        logging.getLogger(__name__).warning("stopped without waiting for what hangs", extra={"work": stuck})
        logging.shutdown()
        os._exit(0)
    return 0
