"""A host of files that is well, for tests to make ill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import dra_simulate
from dra_agent.doctor import CheckContext, CommandResult, CommandRunner, Finding, Severity, run_checks
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.topology import scan

VERSIONS = {"podman": "podman version 4.9.3", "runc": "runc version 1.1.12\nspec: 1.0.2"}


class Programs(CommandRunner):
    """The programs of a host: what they print, or how they fail."""

    def __init__(self, **outputs: str | CommandResult) -> None:
        self.outputs = outputs

    def find(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.outputs else None

    def run(self, argv: Sequence[str]) -> CommandResult:
        output = self.outputs[Path(argv[0]).name]
        return output if isinstance(output, CommandResult) else CommandResult(0, output)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A simulated DGX H100 of one's own."""
    return dra_simulate.build("dgx-h100", tmp_path / "host")


@pytest.fixture
def healthy_host(tmp_path: Path) -> CheckContext:
    """Nothing but directories, and runtimes that work: no finding is worse than ok."""
    for name in ("sys/bus/pci/devices", "sys/devices", "dev", "proc", "etc-cdi", "cdi", "state"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "state").chmod(0o700)
    return CheckContext(
        host=Host(tmp_path / "sys", tmp_path / "dev", tmp_path / "proc"),
        cdi_dir=tmp_path / "cdi",
        runtime_dirs=(tmp_path / "etc-cdi", tmp_path / "cdi"),
        state_dir=tmp_path / "state",
        containerd_config=tmp_path / "containerd.toml",
        docker_config=tmp_path / "daemon.json",
        commands=Programs(**VERSIONS),
        user=0,
        simulated=True,
    )


Findings = Callable[[CheckContext], list[Finding]]
Scanned = Callable[[], CheckContext]


@pytest.fixture
def findings() -> Findings:
    """All findings that are not ok."""

    def find(examination: CheckContext) -> list[Finding]:
        return [finding for finding in run_checks(examination) if finding.severity is not Severity.OK]

    return find


@pytest.fixture
def scanned(healthy_host: CheckContext, host: Host) -> Scanned:
    """Scan the simulated host in its present state."""

    def new_context() -> CheckContext:
        healthy_host.host = host
        healthy_host.topology = scan(host)
        healthy_host.inventory = collect(host, healthy_host.topology)
        return healthy_host

    return new_context
