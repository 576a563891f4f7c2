"""What the running agent says of itself over its socket, so that commands show its host and not another."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from dra_agent import __version__
from dra_agent.agent.config import Config, to_path
from dra_agent.errors import AgentError


class RunningAgent(msgspec.Struct, frozen=True):
    """An agent that answers."""

    pid: int
    version: str
    config: Config


def describe(config: Config) -> Any:
    """Describe this process as JSON values."""
    return msgspec.to_builtins(RunningAgent(os.getpid(), __version__, config), enc_hook=str)


def query(config: Config) -> RunningAgent | None:
    """Ask the agent that runs on a state directory; None where none answers."""
    from dra_agent.reclaim.client import send_request as ask_socket
    from dra_agent.reclaim.wire import About

    try:
        answer = ask_socket(config.state_dir, About())
        return msgspec.convert(answer, RunningAgent, dec_hook=to_path)
    except (AgentError, msgspec.ValidationError):
        return None  # there is none, it is not ours to ask, or it is of another version
