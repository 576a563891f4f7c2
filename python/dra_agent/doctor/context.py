"""The input of the checks: a host, its inventory, and the agent's own directories."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dra_agent.cdi.registry import DEFAULT_DIRECTORIES
from dra_agent.command import inherited_environment
from dra_agent.errors import AgentError
from dra_agent.host import Host
from dra_agent.inventory.model import Inventory
from dra_agent.path_search import find_program
from dra_agent.topology import Topology

TIMEOUT_S = 5.0
"""Seconds; a program that only prints its version and takes longer hangs."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a program ended."""

    code: int | None
    """None where it could not be started or did not end in time."""
    output: str
    """Standard output, or the error."""


class CommandRunner:
    """The programs of this machine."""

    def find(self, name: str) -> str | None:
        """Return the path of a program, also outside of PATH in directories of root; None if it is not installed."""
        found = find_program(name, system=True)
        return None if found is None else str(found)

    def run(self, argv: Sequence[str]) -> CommandResult:
        """Run a program without input, for `TIMEOUT_S` at most; its error output counts if it prints nothing else."""
        try:
            done = subprocess.run(
                argv,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                stdin=subprocess.DEVNULL,
                env=inherited_environment(),
            )
        except subprocess.TimeoutExpired:
            return CommandResult(None, f"no response within {TIMEOUT_S:g} s")
        except OSError as error:
            return CommandResult(None, f"cannot be started: {error.strerror}")
        return CommandResult(done.returncode, done.stdout.strip() or done.stderr.strip())


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """State of the ledger, read from a copy."""

    claims: frozenset[str] = frozenset()
    """Uids of the claims that hold devices."""
    exists: bool = True
    """False: there is none in the state directory."""
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
    """Names of this agent's devices that it manages too; None if it did not respond."""


@dataclass(frozen=True, slots=True)
class EndpointFiles:
    """The files that protect /metrics; None: not configured."""

    certificate: Path | None
    key: Path | None
    tokens: Path | None
    is_loopback: bool
    """Only users of this host can reach the address."""


@dataclass(kw_only=True)
class CheckContext:
    """State of one host at one time. A part that could not be read is None, and `failure` has the reason."""

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
    commands: CommandRunner = field(default_factory=CommandRunner)
    other_agents: tuple[OtherAgent, ...] = ()
    user: int = field(default_factory=os.geteuid)
    simulated: bool = False
    unnamed_node: str = ""
    """Why the host's name cannot be that of its node; "" if it can, or if another name is configured."""
    unreachable: str = ""
    """Why it is not known what the agent does: it does not respond, or this user may not ask it."""
    notice_sources: int | None = None
    """Number of sources of reclaim notices; None: no agent runs on this host, or it does not report them."""
    notices_missing: str = ""
    """What is missing from these sources, or why they are not known."""
    sees_no_notice: bool = False
    """Whether none of them can be reached, or that is not known."""
    file_problems: tuple[str, ...] = ()
    """Why no agent could start with the file of the configuration."""
    reload_problems: tuple[str, ...] | None = None
    """Why the running agent refused the last change of its configuration; None: no agent runs on this host."""
    kubeconfig: Path | None = None
    """The agent's own; None: not configured, as in a pod or in standalone mode."""
    endpoint: EndpointFiles | None = None
    """None: no metrics address is configured."""
    restart_keys: tuple[str, ...] = ()
    """Changed keys of the configuration that wait for a restart of the agent."""
    telemetry_interval_s: float = 0.0
    """Of the running agent; 0: it takes no samples, or none responds."""

    @cached_property
    def cdi_dirs(self) -> tuple[Path, ...]:
        """The directories that runtimes read, and the agent's where it is another."""
        usual = any(self.cdi_dir.resolve() == directory.resolve() for directory in self.runtime_dirs)
        return (*self.runtime_dirs, *(() if usual else (self.cdi_dir,)))

    @cached_property
    def ledger(self) -> LedgerSummary:
        """The ledger of the state directory when it was read first; an agent may write it concurrently."""
        return self.read_ledger()

    def read_ledger(self) -> LedgerSummary:
        """Read the current ledger of the state directory."""
        from dra_agent.prepare.ledger_reader import read_copy

        try:
            read = read_copy(self.state_dir)
        except AgentError as error:
            return LedgerSummary(failure=error.message.removeprefix("cannot be read: "))
        if read is None:
            return LedgerSummary(exists=False)
        entries, report = read
        held = [
            (entry.full_name, item.device)
            for entry in entries
            for item in entry.devices
            if item.request and entry.state == "completed"
        ]
        claims = frozenset(entry.uid for entry in entries)
        return LedgerSummary(claims, problems=tuple(report.problems()), held=tuple(held))
