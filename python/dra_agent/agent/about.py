"""The running agent's description over its socket, so that commands show the same host."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from dra_agent import __version__
from dra_agent.agent.config import Config, to_path
from dra_agent.agent.reload import ReloadStatus
from dra_agent.errors import AgentError


class RunningAgent(msgspec.Struct, frozen=True):
    """A running agent."""

    pid: int
    version: str
    config: Config
    """The configuration in effect."""
    reload: ReloadStatus | None = None


def describe(config: Config, reload: ReloadStatus | None = None) -> Any:
    """Describe this process as JSON values."""
    return msgspec.to_builtins(RunningAgent(os.getpid(), __version__, config, reload), enc_hook=str)


def query(config: Config) -> RunningAgent | None:
    """Query the agent of a state directory; None if none responds."""
    from dra_agent.reclaim.control import About, send_request

    try:
        response = send_request(config.state_dir, About())
        return msgspec.convert(response, RunningAgent, dec_hook=to_path)
    except (AgentError, msgspec.ValidationError):
        return None  # no agent, no permission, or another version
