"""Which host a command shows: that of the agent that runs here, unless flags or variables name another."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dra_agent.agent.config import Config, load_config

if TYPE_CHECKING:
    from dra_agent.agent.about import RunningAgent

_NO_RECORDS = Path("/nonexistent/dra-agent")
"""A state directory that never exists: data of one host is never used for another."""


@dataclass(frozen=True)
class ShownHost:
    """The host, and the agent that runs here."""

    config: Config
    agent: RunningAgent | None
    is_agents: bool
    """True if the agent runs on this host, so that its claims and findings concern these devices."""

    @property
    def records(self) -> Path:
        """The state directory with this host's claims, health and findings; a missing directory for another host.

        Without a running agent, a named state directory belongs to the named host.
        """
        if self.is_agents:
            return self.config.state_dir
        named = self.config.state_dir != Config().state_dir
        if self.agent is None and (self.config.simulate is None or named):
            return self.config.state_dir
        return _NO_RECORDS

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
        return f"host {host}: no agent" if self.agent is None else f"host {host}: not the agent's"

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
    from dra_agent.agent.about import query

    plain = load_config(args)
    agent = query(plain)
    if agent is None:
        return ShownHost(plain, None, is_agents=False)
    if getattr(args, "config", None) is None:
        candidate = load_config(args, below=agent.config)
        if _same(candidate, agent.config):
            return ShownHost(candidate, agent, is_agents=True)
    return ShownHost(plain, agent, is_agents=_same(plain, agent.config))


def _same(one: Config, other: Config) -> bool:
    def places(config: Config) -> tuple[object, ...]:
        roots = (config.nvidia_driver_root, config.nvidia_driver_root_ctr_path)
        return config.sysfs_root, config.dev_root, config.simulate, *roots

    return places(one) == places(other)
