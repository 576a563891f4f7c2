"""The running agent's description over its socket, so that commands show the same host."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from dra_agent import __version__
from dra_agent.agent.config import Config, to_path
from dra_agent.agent.reload import ReloadStatus
from dra_agent.errors import AgentError, NoAgentError


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


class NoAgent(msgspec.Struct, frozen=True):
    """No agent runs on the state directory."""

    reason: str


class UnreachableAgent(msgspec.Struct, frozen=True):
    """An agent may run: this user may not ask it, or it does not respond."""

    reason: str


AgentAnswer = RunningAgent | NoAgent | UnreachableAgent
"""What is known of the agent of a state directory."""


def query(config: Config) -> AgentAnswer:
    """Query the agent of a state directory."""
    from dra_agent.reclaim.control import About, send_request

    try:
        response = send_request(config.state_dir, About())
        return msgspec.convert(response, RunningAgent, dec_hook=to_path)
    except NoAgentError as error:
        return NoAgent(str(error))
    except AgentError as error:
        return UnreachableAgent(str(error))
    except msgspec.ValidationError as error:
        return UnreachableAgent(f"the agent in {config.state_dir} is of another version: {error}; restart it")
