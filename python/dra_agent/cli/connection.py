"""How commands find the agent of this host (the socket in its state directory) and the API server of its cluster."""

from __future__ import annotations

import argparse
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from dra_agent.kube_client import ApiClient
    from dra_agent.standalone.client import Client

_T = TypeVar("_T")
POLL_INTERVAL_S = 0.1
"""Between two attempts to reach an agent that may be starting."""


def add_connection_flags(parser: argparse.ArgumentParser, *, cluster: bool = False) -> None:
    """Add the flags that say where the agent keeps its socket, and with `cluster` where the API server is."""
    from dra_agent.agent.config import add_flags

    add_flags(parser, ["state_dir", *(["kubeconfig"] if cluster else [])])


def connect(args: argparse.Namespace, *, wait_s: float = 0.0) -> Client:
    """Connect to the agent; raises RetryableError where none answers within `wait_s` seconds."""
    import sys
    import time

    from dra_agent.agent.config import load_config
    from dra_agent.errors import RetryableError
    from dra_agent.standalone.client import Client
    from dra_agent.standalone.wire import SOCKET

    path = load_config(args).state_dir / SOCKET
    deadline = time.monotonic() + wait_s
    announced = False
    while True:
        try:
            return Client(path)
        except RetryableError:
            if time.monotonic() >= deadline:
                raise
        if not announced:
            announced = True
            print(f"waiting up to {wait_s:.0f} s for the agent at {path}", file=sys.stderr)
        time.sleep(POLL_INTERVAL_S)


def ask_cluster(args: argparse.Namespace, story: Callable[[ApiClient], Awaitable[_T]]) -> _T:
    """Ask the API server; UsageError where nothing says which one."""
    import asyncio

    from dra_agent.kube_client import connect as connect_cluster

    async def main() -> _T:
        async with connect_cluster(_kubeconfig(args)) as api:
            return await story(api)

    return asyncio.run(main())


def namespace_of(args: argparse.Namespace) -> str:
    """Give the namespace that a command is about, as kubectl does: -n, or the context's, or default."""
    from dra_agent.kube_client.config import load_client_config

    named: str | None = args.namespace
    return named or load_client_config(_kubeconfig(args)).namespace


def knows_cluster(args: argparse.Namespace) -> bool:
    """Tell whether anything says which API server to ask: then it is asked, and else things are shown without it."""
    from dra_agent.agent.config import load_config

    return bool(load_config(args).kubeconfig or _of_environment())


def _kubeconfig(args: argparse.Namespace) -> Path | None:
    """What the agent's configuration names, or kubectl's default where nothing else says where the API server is."""
    from dra_agent.agent.config import load_config

    usual = Path.home() / ".kube/config"
    return load_config(args).kubeconfig or (usual if usual.exists() and not _of_environment() else None)


def _of_environment() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST") or os.environ.get("KUBECONFIG"))
