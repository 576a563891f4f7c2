"""How commands find the agent of this host: the socket in its state directory."""

from __future__ import annotations

import argparse

from dra_agent.standalone.client import Client
from dra_agent.standalone.wire import SOCKET


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where the agent keeps its socket."""
    from dra_agent.agent.config import add_flags

    add_flags(parser, ["state_dir"])


def connect(args: argparse.Namespace) -> Client:
    """Connect to the agent; raises RetryableError where none answers."""
    from dra_agent.agent.config import load

    return Client(load(args).state_dir / SOCKET)
