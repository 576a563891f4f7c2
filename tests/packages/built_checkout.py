"""A user with the built checkout on a machine, for tests that paste what pages and README run in a clone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from deploy.install import BINARIES, copy_distribution, requirements
from deploy.revision import FILE

from packages.machine import Machine

ROOT = Path(__file__).resolve().parents[2]
INCLUDED = "systemd,systemd-sysv,dbus,python3,python3-venv,procps,make,sudo,podman,crun,ca-certificates,busybox-static"
"""What the section of the README asks for, and busybox, from which the image is made."""
DEBIAN_PYTHON = (3, 11)
USER = "visitor"
FOLDER = "/packages/dra-agent"
CONTAINERS = """\
[containers]
cgroups = "disabled"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
"""
"""For hosts of the test whose processes may not raise their limits, which crun does for cgroups."""
STORAGE = """\
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
"""
"""The root of the machine is an overlay, on which podman can create none."""
IMPORT_IMAGE = """
set -e
root=$(mktemp -d) && mkdir $root/bin && cp /bin/busybox $root/bin && ln -s busybox $root/bin/env
tar --create --directory=$root . | podman import - docker.io/library/busybox:latest && rm -r $root
"""


def prepare(machine: Machine, shared: Path) -> None:
    """Give the machine a user with sudo, the built checkout, and an image that no registry has to deliver."""
    if sys.version_info[:2] != DEBIAN_PYTHON:
        pytest.skip("needs the Python of the clean root for the build: 3.11")
    copy_checkout(shared / "dra-agent")
    machine.run("useradd", "--create-home", "--shell", "/bin/bash", USER)
    machine.write(f"/etc/sudoers.d/{USER}", f"{USER} ALL=(ALL) NOPASSWD: ALL\n")
    machine.write("/etc/hosts", "127.0.0.1 localhost machine\n")
    machine.write("/etc/containers/containers.conf", CONTAINERS)
    machine.write("/etc/containers/storage.conf", STORAGE)
    machine.run("sh", "-c", IMPORT_IMAGE)
    # The environment that `make build` creates, with the interpreter of this machine.
    machine.run("python3", "-m", "venv", "--without-pip", f"{FOLDER}/.venv")
    packages = shared / "dra-agent/.venv/lib/python3.11/site-packages"
    for name in sorted({*requirements("dra-agent"), "dra-agent"}):
        copy_distribution(distribution(name), packages)
    (packages / "dra_agent.pth").write_text(f"{FOLDER}/python\n")
    # In the order in which `make` builds them: it finds nothing to do.
    outputs = [f"{FOLDER}/python/{name}" for name in BINARIES]
    for path in (f"{FOLDER}/.venv/.synced", *outputs, f"{FOLDER}/.venv/.native-release"):
        machine.run("touch", path)
    machine.run("chown", "--recursive", f"{USER}:{USER}", FOLDER)


def copy_checkout(target: Path) -> None:
    """Copy the files of this checkout that git does not ignore, and what `make build` compiles."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    built = [f"python/{name}" for name in BINARIES]
    names = [*listed.stdout.rstrip("\0").split("\0"), *built, *([str(FILE.relative_to(ROOT))] if FILE.exists() else [])]
    for name in names:
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def paste(machine: Machine, *lines: str, user: str = USER) -> str:
    """Run lines in one shell of a user in the checkout, stop at the first failure, and return the output."""
    script = "\n".join(["set -e", f"cd {FOLDER}", *lines])
    return machine.run("runuser", "--login", user, "--command", script).stdout
