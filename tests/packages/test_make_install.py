"""`make install` in a clean root with systemd and podman: the quickstart of README.md, and commands of the pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import quickstart
from packages import documented
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
    install = install.replace("make install", "make install SIMULATE=1")
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


def test_the_commands_of_the_pages_install_upgrade_and_remove_the_service(uninstalled: Machine) -> None:
    install, *start = documented.block("install/systemd.md", "The agent as a systemd service")
    assert install == "make install" and start[-1] == "systemctl status dra-agent"
    paste(uninstalled, f"{install} SIMULATE=1", user="root")
    added = "\n".join(settings())
    uninstalled.write(CONFIG, uninstalled.output("cat", CONFIG) + f"\n{added}\n")
    assert re.search(r"\d+ devices on node ", paste(uninstalled, *start, user="root"))
    paste(
        uninstalled, "dra-agent claim apply -f examples/classes/gpu.yaml -f examples/claims/one-gpu.yaml", user="root"
    )
    (spec,) = uninstalled.output("ls", "/run/cdi").split()
    content, process = uninstalled.output("cat", f"/run/cdi/{spec}"), uninstalled.property("MainPID")

    upgrade = documented.row(documented.LIFECYCLE, "service")
    assert upgrade == ["make install", "systemctl daemon-reload", "systemctl restart dra-agent"]
    assert f"kept      {CONFIG}" in paste(uninstalled, f"{upgrade[0]} SIMULATE=1", *upgrade[1:], user="root")
    assert uninstalled.property("MainPID") not in ("0", process)
    assert uninstalled.output("cat", f"/run/cdi/{spec}") == content

    remove = documented.line(documented.LIFECYCLE, "Uninstall", "make uninstall")
    purge = remove.replace("make uninstall", "! make uninstall PURGE=1 2>&1")
    assert "claims are held: default/one-gpu" in paste(uninstalled, purge, user="root")
    assert uninstalled.output("cat", f"/run/cdi/{spec}") == content
    paste(uninstalled, "systemctl start dra-agent", "dra-agent claim delete one-gpu", user="root")
    paste(uninstalled, remove, "systemctl daemon-reload", user="root")
    for path in ("/usr/local/bin/dra-agent", "/usr/local/lib/dra-agent", "/usr/lib/systemd/system/dra-agent.service"):
        assert uninstalled.run("test", "-e", path, check=False).returncode == 1, path
    uninstalled.run("test", "-e", CONFIG)
    uninstalled.run("test", "-d", "/var/lib/dra-agent")
    paste(uninstalled, "make uninstall PURGE=1", user="root")
    assert (
        uninstalled.output("sh", "-c", "ls -d /etc/dra-agent /var/lib/dra-agent /run/dra-agent 2>/dev/null; true") == ""
    )
