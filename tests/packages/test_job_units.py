"""The units of jobs in the documentation, through a restart, a crash and an update of the agent.

Container runtimes are replaced by a program that records its arguments and runs until it is stopped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventually import eventually
from packages.conftest import CLAIM, add_simulated_hosts, install_and_configure, specs
from packages.machine import Machine, base_root

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/devices/run-with-a-claim.md"
UNIT = "/etc/systemd/system/train.service"
RUNTIME = """\
#!/bin/sh
echo "$$ $*" >> /run/started
exec sleep infinity
"""
WAIT_S = 240.0


@pytest.fixture(scope="module")
def jobs(packages: Path) -> Iterator[Machine]:
    """A machine with the service and a runtime."""
    machine = Machine(base_root(), packages)
    try:
        add_simulated_hosts(machine, packages)
        install_and_configure(machine)
        machine.write("/usr/local/bin/podman", RUNTIME)
        machine.run("chmod", "755", "/usr/local/bin/podman")
        machine.run("ln", "-s", "/usr/bin/dra-agent", "/usr/local/bin/dra-agent")
        machine.write("/etc/dra-agent/claims/train.yaml", CLAIM.replace("NAME", "train"))
        yield machine
    finally:
        machine.close()


def documented(part: str) -> str:
    """Return the unit of the page with this text."""
    (unit,) = [text for text in re.findall(r"^```ini\n(.*?)^```", PAGE.read_text(), re.M | re.S) if part in text]
    return str(unit)


def as_service(unit: str) -> str:
    """Return the unit that Quadlet makes of a file for containers: its command becomes ExecStart."""
    if "[Container]" not in unit:
        return unit
    command = "ExecStart=/usr/local/bin/podman run $DEVICES IMAGE"
    return re.sub(r"\[Container\]\n(?:.+\n)*\n", "", unit).replace("[Service]\n", f"[Service]\n{command}\n")


def job(machine: Machine) -> str:
    return machine.output("systemctl", "show", "--value", "--property=MainPID,ActiveState", "train.service")


def answers(machine: Machine) -> bool:
    return machine.run("dra-agent", "claim", "list", check=False).returncode == 0


@pytest.mark.parametrize("part", ["claim run -f", "[Container]"], ids=["one command", "Quadlet"])
def test_a_job_outlives_its_agent(jobs: Machine, part: str) -> None:
    jobs.write(UNIT, as_service(documented(part)))
    jobs.run("systemctl", "daemon-reload")
    jobs.run("rm", "--force", "/run/started")
    jobs.run("systemctl", "start", "train.service")
    eventually(lambda: jobs.run("test", "-s", "/run/started", check=False).returncode == 0, within=WAIT_S)
    started = jobs.output("cat", "/run/started")
    assert len(started.splitlines()) == 1 and "--device dra-agent.internal/claim=" in started
    running, spec = job(jobs), specs(jobs)
    assert "active" in running.split() and len(spec) == 1

    jobs.run("systemctl", "restart", "dra-agent")
    assert (job(jobs), specs(jobs)) == (running, spec)

    former = jobs.property("MainPID")
    jobs.run("kill", "-KILL", former)
    eventually(lambda: jobs.property("MainPID") not in (former, "0"), jobs.journal, within=WAIT_S)
    eventually(lambda: answers(jobs), jobs.journal, within=WAIT_S)
    assert (job(jobs), specs(jobs)) == (running, spec)

    jobs.run("apt-get", "install", "--yes", "--allow-downgrades", "/packages/new.deb")
    eventually(lambda: answers(jobs), jobs.journal, within=WAIT_S)
    assert (job(jobs), specs(jobs)) == (running, spec)
    assert jobs.output("cat", "/run/started") == started, "the command was started once"

    jobs.run("systemctl", "stop", "train.service")
    eventually(lambda: not specs(jobs), jobs.journal, within=WAIT_S)
    jobs.run("apt-get", "install", "--yes", "--allow-downgrades", "/packages/old.deb")


def test_a_job_that_was_killed_without_an_agent_starts_again(jobs: Machine) -> None:
    jobs.write(UNIT, documented("claim run -f"))
    jobs.run("systemctl", "daemon-reload")
    jobs.run("systemctl", "start", "train.service")
    eventually(lambda: specs(jobs), within=WAIT_S)
    former = specs(jobs)
    jobs.run("systemctl", "stop", "dra-agent")
    jobs.run("systemctl", "kill", "--signal=KILL", "train.service")
    eventually(lambda: "active" not in job(jobs).split(), within=WAIT_S)
    assert specs(jobs) == former, "nothing could release the claim"
    jobs.run("systemctl", "reset-failed", "train.service")
    jobs.run("systemctl", "start", "dra-agent", "train.service")
    eventually(lambda: specs(jobs) and not specs(jobs) & former, jobs.journal, within=WAIT_S)
    jobs.run("systemctl", "stop", "train.service")
    eventually(lambda: not specs(jobs), jobs.journal, within=WAIT_S)
