"""Fixtures of the tests in a virtual machine (`make test-vm`): Linux in QEMU, without KVM, with real PCI devices.

`guest` is one boot for all tests of a session: `.run("ip link")`, `.monitor("device_add", ...)` for QEMU. Its root is
that of this host, read-only, with changes in memory. `commands` are those of dra-agent there: `.read("devices")`.
`agent` is an agent there for all tests of a module, with the settings `AGENT_CONFIG` of the module. A test leaves
devices and interfaces as it found them.

DRA_AGENT_TEST_VM_KERNEL selects the kernel: oldest (the default) or newest.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from permissions import permissions_of_root
from vm.machine.agent import Agent, Commands
from vm.machine.emulator import emulator
from vm.machine.guest import Guest, GuestError
from vm.machine.initrd import BUSYBOX
from vm.machine.kernels import SUITES, kernel
from vm.machine.service import Service

__all__ = ["permissions_of_root"]

KERNEL = os.environ.get("DRA_AGENT_TEST_VM_KERNEL", "oldest")
PYTHON = Path("/usr/bin/python3")
"""The one that the guest has without this checkout's environment."""
TEST_TIMEOUT_S = 7200
"""Seconds; shorter deadlines within a test fail first, with a message."""


def pytest_configure() -> None:
    """Stop at once where no guest can run, or with an unknown kernel."""
    if missing := missing_requirement():
        pytest.exit(f"make test-vm needs {missing}", returncode=1)


def missing_requirement() -> str | None:
    """Return what is missing on this machine, or None."""
    if KERNEL not in SUITES:
        return f"DRA_AGENT_TEST_VM_KERNEL to be one of {', '.join(SUITES)}, not {KERNEL!r}"
    if os.uname().machine != "x86_64":
        return "an x86-64 machine"
    if os.geteuid() != 0:
        return "root, because the guest reads all files of this host"
    commands = {"apt-get": "apt", "dpkg-deb": "dpkg", "ip": "iproute2", "lspci": "pciutils", "podman": "podman"}
    packages = [package for name, package in commands.items() if shutil.which(name) is None]
    programs = {PYTHON: "python3", BUSYBOX: "busybox-static"}
    packages += [package for path, package in programs.items() if not path.exists()]
    return f"Debian packages: apt-get install {' '.join(packages)}" if packages else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test here the time of a boot on a slow machine."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last messages of the guest's kernel to a failure."""
    report = yield
    fixtures: dict[str, object] = getattr(item, "funcargs", {})
    for value in fixtures.values() if report.failed else ():
        running = value.guest if isinstance(value, Service) else value
        if isinstance(running, Guest):
            with suppress(GuestError):
                report.sections.append(("kernel of the guest", running.run("dmesg | tail -n 60", check=False)))
            break
    return report


@pytest.fixture(scope="session")
def guest() -> Iterator[Guest]:
    """A guest with the root of this host, for all tests."""
    with tempfile.TemporaryDirectory(prefix="dra-vm-") as folder:
        shared = Path(folder) / "shared"
        shared.mkdir()
        running = Guest(emulator(), kernel(KERNEL), shared, Path(folder))
        yield running
        running.close()


@pytest.fixture(autouse=True)
def measured(request: pytest.FixtureRequest) -> None:
    """Measure how slow the guest of a test is."""
    if "service" in request.fixturenames:
        request.getfixturevalue("service").guest.measure()
    else:
        request.getfixturevalue("guest").measure()


@pytest.fixture(scope="session")
def commands(guest: Guest) -> Commands:
    """The commands of dra-agent in the guest."""
    return Commands(guest)


@pytest.fixture(scope="module")
def agent(request: pytest.FixtureRequest, commands: Commands) -> Iterator[Agent]:
    """An agent in the guest, without Kubernetes, for all tests of a module."""
    running = Agent(commands, getattr(request.module, "AGENT_CONFIG", ""))
    yield running
    running.stop()
