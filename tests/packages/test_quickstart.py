"""The quickstart of README.md without hardware, by a user without permissions in a clean root that has the package."""

from __future__ import annotations

import shutil
from pathlib import Path

import quickstart
from eventually import eventually
from packages.conftest import ROOT
from packages.machine import Machine

HEADING = "Try it without hardware"


def test_the_quickstart_works_in_a_clean_root(machine: Machine, packages: Path, tmp_path: Path) -> None:
    # The user's agent is the only one, as with a checkout. docs/how-to/install/packages.md has these lines.
    machine.run("systemctl", "mask", "dra-agent")
    machine.run("apt-get", "install", "--yes", "--no-install-recommends", "/packages/old.deb")
    shutil.copytree(ROOT / "examples", packages / "examples", dirs_exist_ok=True)
    build, *pasted = quickstart.lines(HEADING)
    assert build == 'make build && export PATH="$PWD/.venv/bin:$PATH"'
    lines = ["set -e", "cd /packages", *quickstart.timed(pasted, Path("/tmp/times"))]
    machine.run("useradd", "--create-home", "--shell", "/bin/bash", "visitor")
    ran = machine.run("runuser", "--login", "visitor", "--command", "\n".join(lines))
    assert "resourceclaim/gpu-and-nic-one-switch created: prepared" in ran.stdout
    assert "resourceclaim/gpu-and-nic-one-switch deleted" in ran.stdout
    times = tmp_path / "times"
    times.write_text(machine.output("cat", "/tmp/times"))
    quickstart.record(
        f"{HEADING}, in a clean root", pasted, times, left_out="make build: the command is that of the Debian package"
    )
    # The last line ends the agent.
    eventually(lambda: machine.run("pgrep", "--uid", "visitor", check=False).stdout == "")
