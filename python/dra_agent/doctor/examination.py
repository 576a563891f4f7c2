"""What the checks look at: a host, what was found on it, and the agent's own directories."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dra_agent.cdi.registry import DEFAULT_DIRECTORIES
from dra_agent.doctor.commands import Commands, SystemCommands
from dra_agent.errors import AgentError
from dra_agent.host import Host
from dra_agent.inventory import Inventory
from dra_agent.topology import Topology


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the ledger says of itself, read from a copy."""

    claims: frozenset[str] = frozenset()
    """Uids of the claims that hold devices."""
    problems: tuple[str, ...] = ()
    failure: str | None = None
    """Why it cannot be read at all."""


@dataclass(kw_only=True)
class Examination:
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
    lock_name: str = "agent.lock"
    store_name: str = "objects.db"
    locks: Path = Path("/proc/locks")
    kubelet_dir: Path = Path("/var/lib/kubelet")
    commands: Commands = field(default_factory=SystemCommands)
    user: int = field(default_factory=os.geteuid)
    simulated: bool = False

    @cached_property
    def cdi_dirs(self) -> tuple[Path, ...]:
        """The directories that runtimes read, and the agent's where it is another."""
        usual = any(self.cdi_dir.resolve() == directory.resolve() for directory in self.runtime_dirs)
        return (*self.runtime_dirs, *(() if usual else (self.cdi_dir,)))

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of the state directory; an agent may be writing it meanwhile."""
        source = self.state_dir / "ledger"
        try:
            if not source.exists():
                return Ledger()
            with _copy(source) as directory:
                return _read(directory)
        except AgentError as error:
            return Ledger(failure=str(error))
        except (OSError, shutil.Error) as error:
            return Ledger(failure=getattr(error, "strerror", None) or str(error))


@contextmanager
def _copy(source: Path) -> Iterator[Path]:
    # Opening a ledger mends it; the doctor must change nothing, and an agent may have it open.
    with tempfile.TemporaryDirectory(prefix="dra-agent-doctor-") as directory:
        shutil.copytree(source, Path(directory) / "ledger")
        yield Path(directory)


def _read(directory: Path) -> Ledger:
    from dra_agent.prepare.ledger import JournalLedger

    with JournalLedger(directory, "doctor") as ledger:
        uids = frozenset(entry.uid for entry in ledger.entries())
        return Ledger(uids, tuple(ledger.report.problems()))
