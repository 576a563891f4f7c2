"""How commands find the agent of this host: the socket in its state directory."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from dra_agent.standalone.client import Client
from dra_agent.standalone.wire import SOCKET

DEFAULT_STATE_DIR = "/var/lib/dra-agent"


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--state-dir`."""
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=Path(os.environ.get("DRA_AGENT_STATE_DIR", DEFAULT_STATE_DIR)),
        metavar="DIR",
        help=f"the agent's state directory (default: $DRA_AGENT_STATE_DIR or {DEFAULT_STATE_DIR})",
    )


def connect(args: argparse.Namespace) -> Client:
    """Connect to the agent; raises RetryableError where none answers."""
    state_dir: Path = args.state_dir
    return Client(state_dir / SOCKET)
