"""The Debian package: installation, upgrade, removal and purge in a clean root with systemd."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import released
from packages import documented
from packages.conftest import ROOT, apply_claim, install_and_configure, specs
from packages.machine import Machine

OF_THE_SYSTEM = re.compile(
    r"/(var/(log|cache|lib/(dpkg|apt|systemd|private|pam))|run|etc/dra-agent/kubeconfig)(/|$)|/(etc|usr|var|dev/shm)$"
)
"""Paths that dpkg, apt, systemd and journald write for their own purposes."""


def left(machine: Machine, before: set[str]) -> set[str]:
    """Return what the package left, including everything with its name."""
    found = {path for path in machine.files() - before if not OF_THE_SYSTEM.match(path)}
    return found | {path for path in machine.files() if "dra-agent" in path and "/dpkg/" not in path}


def test_the_first_installation_enables_and_starts_the_service(machine: Machine) -> None:
    machine.run("apt-get", "install", "--yes", "--no-install-recommends", "/packages/old.deb")
    assert machine.property("ActiveState") == "active"
    assert machine.property("UnitFileState") == "enabled"
    assert machine.output("stat", "-c", "%a %U:%G", "/run/cdi") == "755 root:root"
    # Compiled at the installation: the service cannot write there.
    assert machine.output("find", "/usr/lib/dra-agent", "-name", "agent.cpython-*.pyc")
    assert machine.output("dpkg-query", "--show", "--showformat=${Conffiles}", "dra-agent").startswith(
        "/etc/dra-agent/config.toml"
    )
    assert machine.run("dpkg", "--verify", "dra-agent").stdout == ""
    assert "dra_simulate" not in machine.output("dpkg-query", "--listfiles", "dra-agent")
    assert "dra-agent" in machine.output("sh", "-c", "zcat /usr/share/man/man1/dra-agent.1.gz")
    assert machine.output("kubectl-dra", "--version").startswith("kubectl-dra ")
    assert "dra-agent" in machine.output("cat", "/usr/share/bash-completion/completions/dra-agent")


def test_an_upgrade_and_a_downgrade_keep_configuration_claims_and_decisions(machine: Machine) -> None:
    install_and_configure(machine)
    spec = apply_claim(machine, "training")
    content = machine.output("cat", f"/run/cdi/{spec}")
    process = machine.property("MainPID")
    (upgrade,) = documented.row(documented.LIFECYCLE, "Debian package")
    machine.run("sh", "-c", upgrade.replace("./dra-agent_NEW_ARCH.deb", "/packages/new.deb"))
    assert machine.output("dpkg-query", "--show", "--showformat=${Version}", "dra-agent") == "1.1-1"
    assert machine.property("ActiveState") == "active"
    assert machine.property("MainPID") != process, "the new version runs"
    assert "dgx-h100" in machine.output("cat", "/etc/dra-agent/config.toml")
    assert machine.output("cat", f"/run/cdi/{spec}") == content
    machine.run("systemctl", "disable", "--now", "dra-agent")
    (downgrade,) = re.findall(r"`(dpkg --install .*?)`", (documented.PAGES / documented.LIFECYCLE).read_text())
    machine.run("sh", "-c", downgrade.replace("./dra-agent_OLD_ARCH.deb", "/packages/old.deb"))
    assert machine.property("UnitFileState") == "disabled"
    machine.run("systemctl", "start", "dra-agent")
    assert "default/training" in machine.output("dra-agent", "claims").replace("\n", "")


def test_removal_keeps_held_claims_and_purge_reports_them(machine: Machine) -> None:
    before = machine.files()
    install_and_configure(machine)
    spec = apply_claim(machine, "training")
    remove = documented.line(documented.LIFECYCLE, "Uninstall", "apt-get")
    removed = machine.run("sh", "-c", remove.replace("apt-get", "apt-get --yes"))
    assert "default/training" in removed.stdout
    assert machine.run("test", "-e", "/usr/lib/dra-agent", check=False).returncode == 1
    assert specs(machine) == {spec}
    # A purge now would lose the claims.
    purged = machine.run("dpkg", "--purge", "dra-agent")
    assert "the state is kept" in purged.stdout and "default/training" in purged.stdout
    assert specs(machine) == {spec}
    # The next installation continues with them, so that they can be released.
    install_and_configure(machine)
    assert "default/training" in machine.output("dra-agent", "claims").replace("\n", "")
    machine.run("dra-agent", "claim", "delete", "training")
    machine.write("/run/cdi/dra-agent.internal-claim_stale.json", "{}")
    machine.write("/run/cdi/k8s.gpu.nvidia.com-claim_1.json", "{}")
    machine.run("apt-get", "purge", "--yes", "dra-agent")
    assert machine.output("ls", "/run/cdi") == "k8s.gpu.nvidia.com-claim_1.json", "of another driver"
    assert left(machine, before) == set()


@pytest.mark.skipif(shutil.which("lintian") is None, reason="needs lintian")
def test_lintian_finds_nothing(packages: Path) -> None:
    # An address cannot be valid before a distributor sets it (DEBEMAIL).
    suppressed = "bogus-mail-host,bogus-mail-host-in-debian-changelog,"
    # The package of the tests is not compressed, to build it faster.
    suppressed += "uses-no-compression-for-control-tarball,uses-no-compression-for-data-tarball"
    command: list[str | Path] = ["lintian", "--allow-root", "--suppress-tags", suppressed, packages / "old.deb"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert [line for line in result.stdout.splitlines() if line.startswith(("E:", "W:"))] == []


@pytest.mark.skipif(released.PACKAGES in os.environ, reason="`make release ARGS=--twice` compares two builds")
def test_the_same_sources_give_the_same_package(packages: Path, tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, ROOT / "deploy/deb/build.py", "--output", tmp_path]
    command += ["--compression", "none", "--version", "1.0-1"]
    # A umask of the build must have no effect.
    built = subprocess.run(["sh", "-c", 'umask 077 && exec "$@"', "sh", *command], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert Path(built.stdout.strip()).read_bytes() == (packages / "old.deb").read_bytes()
