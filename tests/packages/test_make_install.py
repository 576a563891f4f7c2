"""The quickstart on bare metal of README.md, pasted by a user with sudo in a clean root with systemd and podman."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import quickstart
from packages.built_checkout import INCLUDED, paste, prepare
from packages.machine import Machine, base_root

HEADING = "Bare metal with podman"
CONFIG = "/etc/dra-agent/config.toml"
TIMES = "/tmp/times"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with the built checkout and without an installation; each test leaves it so."""
    shared = tmp_path_factory.mktemp("checkout")
    shared.chmod(0o755)
    machine = Machine(base_root(INCLUDED), shared)
    try:
        prepare(machine, shared)
        yield machine
    finally:
        machine.close()


@pytest.fixture
def uninstalled(clean: Machine) -> Iterator[Machine]:
    """The machine, on which nothing is installed before and after the test."""
    yield clean
    clean.run("systemctl", "disable", "--now", "dra-agent", check=False)
    clean.run("sh", "-c", "rm -rf /var/lib/dra-agent")
    paste(clean, "sudo make uninstall PURGE=1")
    clean.run("systemctl", "daemon-reload")


def settings() -> list[str]:
    """Return what the section adds to the configuration for a host without an accelerator."""
    section = quickstart.README.read_text().partition(f"## {HEADING}")[2].partition("```")[0]
    return re.findall(r'`([a-z_]+ = "[^"`]+")`', section)


def test_the_quickstart_gives_a_container_its_gpu(uninstalled: Machine, tmp_path: Path) -> None:
    install, *others = quickstart.lines(HEADING)
    added = "\n".join(settings())
    assert "simulate" in added and "cdi_dir" in added
    first, *rest = quickstart.timed([install, *others], Path(TIMES))
    # Between the first line, which creates the file, and the second: the commands of a user who edits it.
    edit = f"printf '%s\\n' '{added}' | sudo tee --append {CONFIG}"
    printed = paste(uninstalled, first, *rest[:2], edit, *rest[2:])
    assert "DRA_AGENT_CLAIM=default/one-gpu\n" in printed
    assert re.search(r"^DRA_AGENT_DEVICE_GPU_\w+=", printed, re.MULTILINE)
    assert "resourceclaim/one-gpu deleted" in printed
    assert uninstalled.property("ActiveState") == "active" and uninstalled.property("UnitFileState") == "enabled"
    assert json.loads(paste(uninstalled, "sudo dra-agent claim list -o json")) == []
    assert uninstalled.output("sh", "-c", "ls /run/cdi") == ""
    times = tmp_path / "times"
    times.write_text(uninstalled.output("cat", TIMES))
    report = quickstart.record(
        f"{HEADING}, in a clean root",
        [install, *others],
        times,
        left_out="the work of make build, which finds its outputs; the pull of the image, which podman has",
    )
    for line in report["lines"]:
        print(f"{line['seconds']:7.2f} s  {line['command']}")
