"""Directories that users share: their permissions, and the kernel's protection against links in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import permissions
from doctor.conftest import Findings
from dra_agent.doctor import CheckContext, Severity


@pytest.mark.parametrize("check", ["state", "CDI"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_parent_that_all_users_can_write_is_a_problem(
    healthy_host: CheckContext, findings: Findings, tmp_path: Path, check: str, exists: bool
) -> None:
    shared = tmp_path / "shared"
    directory = shared / "between/own"
    (directory if exists else directory.parent).mkdir(parents=True, mode=0o700)
    if check == "state":
        healthy_host.state_dir = directory
    else:
        healthy_host.cdi_dir = directory
        healthy_host.runtime_dirs = (directory,)
    directory.parent.chmod(0o755)
    if exists:
        directory.chmod(0o755)
    assert findings(healthy_host) == []
    shared.chmod(0o777)
    (finding,) = findings(healthy_host)
    assert (finding.severity, finding.check, finding.where) == (Severity.PROBLEM, check, str(directory))
    assert f"{shared} (mode 777)" in finding.message and finding.hint == f"chmod o-w {shared}"
    shared.chmod(0o1777)
    assert findings(healthy_host) == []


def test_a_link_in_a_shared_directory_is_a_problem(
    healthy_host: CheckContext, findings: Findings, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "link").symlink_to(healthy_host.state_dir)
    healthy_host.state_dir = shared / "link"
    (finding,) = findings(healthy_host)
    assert finding.severity is Severity.PROBLEM and str(shared) in finding.message


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change an owner")
@pytest.mark.parametrize("check", ["state", "CDI"])
def test_a_directory_of_another_user_is_a_warning(healthy_host: CheckContext, findings: Findings, check: str) -> None:
    directory = healthy_host.state_dir if check == "state" else healthy_host.cdi_dir
    os.chown(directory, 65534, -1)
    with permissions.ignored():
        (finding,) = findings(healthy_host)
    assert (finding.severity, finding.check, finding.where) == (Severity.WARNING, check, str(directory))
    assert "user 65534" in finding.message and finding.hint == f"chown root {directory}"


@pytest.mark.parametrize("name", ["protected_symlinks", "protected_hardlinks"])
def test_links_that_the_kernel_does_not_restrict_are_a_warning(
    healthy_host: CheckContext, findings: Findings, name: str
) -> None:
    settings = healthy_host.host.proc / "sys/fs"
    settings.mkdir(parents=True)
    for each in ("protected_symlinks", "protected_hardlinks"):
        (settings / each).write_text("1\n")
    assert findings(healthy_host) == []
    (settings / name).write_text("0\n")
    (finding,) = findings(healthy_host)
    assert (finding.severity, finding.check, finding.where) == (Severity.WARNING, "kernel", str(settings / name))
    assert f"sysctl -w fs.{name}=1" in finding.hint
