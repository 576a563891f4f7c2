"""What the checks look at: a host, what was found on it, and the agent's own directories."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dra_agent.cdi.registry import DEFAULT_DIRECTORIES
from dra_agent.doctor.commands import CommandRunner, SystemCommandRunner
from dra_agent.errors import AgentError
from dra_agent.host import Host
from dra_agent.inventory import Inventory
from dra_agent.topology import Topology


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """What the ledger says of itself, read from a copy."""

    claims: frozenset[str] = frozenset()
    """Uids of the claims that hold devices."""
    problems: tuple[str, ...] = ()
    failure: str | None = None
    """Why it cannot be read at all."""
    held: tuple[tuple[str, str], ...] = ()
    """Prepared claims (NAMESPACE/NAME), each with a device that it holds."""


@dataclass(frozen=True, slots=True)
class OtherAgent:
    """An agent that runs on the host for another driver."""

    driver: str
    state_dir: Path
    pid: int
    devices: tuple[str, ...] | None
    """Names of devices of ours that it manages too; None where it did not say."""


@dataclass(kw_only=True)
class CheckContext:
    """One look at one host. What could not be taken is None, and the failure says why."""

    host: Host = field(default_factory=Host)
    topology: Topology | None = None
    inventory: Inventory | None = None
    failure: str | None = None
    driver: str = "dra-agent.internal"
    cdi_dir: Path = Path("/var/run/cdi")
    runtime_dirs: tuple[Path, ...] = DEFAULT_DIRECTORIES
    """Where container runtimes look for CDI specs."""
    state_dir: Path = Path("/var/lib/dra-agent")
    containerd_config: Path = Path("/etc/containerd/config.toml")
    docker_config: Path = Path("/etc/docker/daemon.json")
    socket_name: str = "agent.sock"
    trigger_name: str = "reclaim.sock"
    lock_name: str = "agent.lock"
    store_name: str = "objects.db"
    locks: Path = Path("/proc/locks")
    kubelet_dir: Path = Path("/var/lib/kubelet")
    commands: CommandRunner = field(default_factory=SystemCommandRunner)
    other_agents: tuple[OtherAgent, ...] = ()
    user: int = field(default_factory=os.geteuid)
    simulated: bool = False

    @cached_property
    def cdi_dirs(self) -> tuple[Path, ...]:
        """The directories that runtimes read, and the agent's where it is another."""
        usual = any(self.cdi_dir.resolve() == directory.resolve() for directory in self.runtime_dirs)
        return (*self.runtime_dirs, *(() if usual else (self.cdi_dir,)))

    @cached_property
    def ledger(self) -> LedgerSummary:
        """The ledger of the state directory; an agent may be writing it meanwhile."""
        from dra_agent.prepare.ledger_reader import read_copy

        try:
            read = read_copy(self.state_dir)
        except AgentError as error:
            return LedgerSummary(failure=error.message.removeprefix("cannot be read: "))
        if read is None:
            return LedgerSummary()
        entries, report = read
        held = [
            (f"{entry.namespace}/{entry.name}", item.device)
            for entry in entries
            for item in entry.devices
            if item.request and entry.state == "completed"
        ]
        return LedgerSummary(frozenset(entry.uid for entry in entries), tuple(report.problems()), held=tuple(held))
