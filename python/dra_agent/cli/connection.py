"""Connections of commands: to the agent's socket in its state directory, and to the API server of its cluster."""

from __future__ import annotations

import argparse
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from dra_agent.kube_client import ApiClient
    from dra_agent.standalone.protocol import Client

_T = TypeVar("_T")
POLL_INTERVAL_S = 0.1
"""Between two attempts to reach an agent that may be starting."""


def add_connection_flags(parser: argparse.ArgumentParser, *, cluster: bool = False) -> None:
    """Add the flags for the agent's socket, and with `cluster` those for the API server."""
    from dra_agent.agent.config import add_flags

    add_flags(parser, ["state_dir", *(["kubeconfig"] if cluster else [])])
    if cluster:
        parser.add_argument("--context", metavar="CONTEXT", help="context of the kubeconfig (default: its current one)")


def connect(args: argparse.Namespace, *, wait_s: float = 0.0) -> Client:
    """Connect to the agent; raises RetryableError if none responds within `wait_s` seconds."""
    import sys
    import time

    from dra_agent.agent.config import load_config
    from dra_agent.errors import RetryableError
    from dra_agent.standalone.protocol import SOCKET, Client

    deadline = time.monotonic() + wait_s
    announced = False
    while True:
        # Without root, the first agent that starts decides between the host's state directory and the user's.
        path = load_config(args).state_dir / SOCKET
        try:
            return Client(path)
        except RetryableError:
            if time.monotonic() >= deadline:
                raise
        if not announced:
            announced = True
            print(f"waiting up to {wait_s:.0f} s for the agent at {path}", file=sys.stderr)
        time.sleep(POLL_INTERVAL_S)


def call_cluster(args: argparse.Namespace, call: Callable[[ApiClient], Awaitable[_T]]) -> _T:
    """Query the API server; raises UsageError if none is configured."""
    import asyncio

    from dra_agent.kube_client import connect as connect_cluster

    async def main() -> _T:
        async with connect_cluster(_kubeconfig(args), context=_context(args)) as api:
            return await call(api)

    return asyncio.run(main())


def namespace_of(args: argparse.Namespace) -> str:
    """Return the namespace of a command, as kubectl does: -n, or the context's, or default."""
    from dra_agent.kube_client.config import load_client_config

    named: str | None = args.namespace
    return named or load_client_config(_kubeconfig(args), context=_context(args)).namespace


def has_cluster(args: argparse.Namespace) -> bool:
    """Return True if an API server is configured. Without one, commands show the state of the host."""
    from dra_agent.agent.config import load_config

    return bool(load_config(args).kubeconfig or _of_environment())


def _kubeconfig(args: argparse.Namespace) -> Path | None:
    """Return the kubeconfig of the agent's configuration, or kubectl's default; the plugin knows no agent."""
    from dra_agent.agent.config import load_config

    usual = Path.home() / ".kube/config"
    if getattr(args, "is_plugin", False):
        named = Path(args.kubeconfig) if args.kubeconfig else None
    else:
        named = load_config(args).kubeconfig
    return named or (usual if usual.exists() and not _of_environment() else None)


def _context(args: argparse.Namespace) -> str | None:
    named: str | None = getattr(args, "context", None)
    return named


def _of_environment() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST") or os.environ.get("KUBECONFIG"))
