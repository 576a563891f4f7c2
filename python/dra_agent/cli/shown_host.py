"""Which host a command shows: that of the agent that runs here, unless flags or variables name another."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dra_agent.agent.config import Config, load, load_config

if TYPE_CHECKING:
    from dra_agent.agent.about import AgentAnswer, RunningAgent

_NO_RECORDS = Path("/nonexistent/dra-agent")
"""A state directory that never exists: data of one host is never used for another."""


@dataclass(frozen=True)
class ShownHost:
    """The host, and the agent that runs here."""

    config: Config
    answer: AgentAnswer
    is_agents: bool
    """True if the agent runs on this host, so that its claims and findings concern these devices."""
    file_problems: tuple[str, ...] = ()
    """Why no agent could start with the file of the configuration."""

    @property
    def records(self) -> Path:
        """The state directory with this host's claims, health and findings; a missing directory for another host.

        If no agent responds, a named state directory belongs to the named host, and any other one to this machine
        and to the simulated hosts in it.
        """
        state_dir = self.config.state_dir
        if self.is_agents:
            return state_dir
        if self.agent is not None:
            return _NO_RECORDS
        if self.config.simulate is None or state_dir != Config().state_dir:
            return state_dir
        from dra_agent.agent.setup_registry import has_simulated

        return state_dir if has_simulated(self.config) else _NO_RECORDS

    @property
    def agent(self) -> RunningAgent | None:
        """The agent, if it has responded; `answer` has the reason if it has not."""
        from dra_agent.agent.about import RunningAgent

        return self.answer if isinstance(self.answer, RunningAgent) else None

    def asked_again(self) -> ShownHost:
        """Return the same host with the current answer of its agent."""
        from dra_agent.agent.about import RunningAgent, query

        answer = query(self.config)
        return replace(
            self, answer=answer, is_agents=isinstance(answer, RunningAgent) and _same(self.config, answer.config)
        )

    def title(self) -> str:
        """Name the host and its agent."""
        config = self.config
        host = config.host_label
        if config.simulate is not None:
            host += f", simulated {config.simulate}"
        elif str(config.sysfs_root) != "/sys":
            host += f", {config.sysfs_root}"
        if self.is_agents and self.agent is not None:
            return f"host {host}: the agent with pid {self.agent.pid}"
        if self.agent is not None:
            return f"host {host}: not the agent's"
        from dra_agent.agent.about import NoAgent

        return (
            f"host {host}: no agent" if isinstance(self.answer, NoAgent) else f"host {host}: its agent does not respond"
        )

    def announce(self, output: str) -> None:
        """Print the host above a table; in a pipe only if it is not the host of the running agent."""
        from dra_agent.cli.output import prints_names

        if output != "table":
            return
        if sys.stdout.isatty() and not prints_names():
            print(self.title())
        elif self.agent is not None and not self.is_agents:
            print(f"{self.title()}; its claims are not shown", file=sys.stderr)


def shown_host(args: argparse.Namespace) -> ShownHost:
    """Find it: flags over variables over the running agent over the file."""
    from dra_agent.agent.about import RunningAgent, query

    plain = load_config(args)
    problems = tuple(map(str, load(args, is_agent=False).problems))
    agent = query(plain)
    if not isinstance(agent, RunningAgent):
        return ShownHost(plain, agent, is_agents=False, file_problems=problems)
    if getattr(args, "config", None) is None:
        candidate = load_config(args, below=agent.config)
        if _same(candidate, agent.config):
            return ShownHost(candidate, agent, is_agents=True, file_problems=problems)
    return ShownHost(plain, agent, is_agents=_same(plain, agent.config), file_problems=problems)


def _same(one: Config, other: Config) -> bool:
    def places(config: Config) -> tuple[object, ...]:
        roots = (config.nvidia_driver_root, config.nvidia_driver_root_ctr_path)
        return config.sysfs_root, config.dev_root, config.simulate, *roots

    return places(one) == places(other)
