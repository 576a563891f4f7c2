"""Fixtures of the tests of packages and of the service (`make test-packages`).

DRA_AGENT_TEST_PACKAGES names a release directory, whose Debian package, wheel and source distribution are then tested.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import released
from packages.machine import Machine, base_root, missing_requirement
from permissions import permissions_of_root

__all__ = ["permissions_of_root"]

ROOT = Path(__file__).resolve().parents[2]
BUILD_TIMEOUT_S = 900.0
TEST_TIMEOUT_S = 4 * BUILD_TIMEOUT_S
"""Seconds of one test, with the packages and the root directory that the first one builds."""
CONFIG = """\
standalone = true
node_name = "machine"
simulate = "dgx-h100"
cdi_dir = "/run/cdi"
"""
CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec:
  selectors:
  - cel: {expression: 'device.driver == "dra-agent.internal"'}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: NAME, namespace: default}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {deviceClassName: gpu}
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test here the time of the builds, and skip all of them where no machine can run."""
    own = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    reason = missing_requirement() if own else None
    for item in own:
        item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two versions of the package: old.deb, of a release if one is tested, and new.deb."""
    folder = tmp_path_factory.mktemp("packages")
    folder.chmod(0o755)
    if release := released.artifact(released.PACKAGES, "dra-agent_*.deb"):
        shutil.copy(release, folder / "old.deb")
    else:
        build_package(folder)
    # The same files under a later version: that is what an upgrade replaces.
    script = (
        "dpkg-deb -R old.deb later && sed -i 's/^Version: .*/Version: 1.1-1/' later/DEBIAN/control && "
        "dpkg-deb --root-owner-group -Znone -b later new.deb && rm -r later"
    )
    subprocess.run(["sh", "-c", script], cwd=folder, check=True, capture_output=True, timeout=BUILD_TIMEOUT_S)
    return folder


def build_package(folder: Path) -> None:
    """Build old.deb from this checkout."""
    command: list[str | Path] = [sys.executable, ROOT / "deploy/deb/build.py", "--output", folder]
    result = subprocess.run(
        [*command, "--compression", "none", "--version", "1.0-1"],
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )
    assert result.returncode == 0, result.stderr
    Path(result.stdout.strip()).rename(folder / "old.deb")


@pytest.fixture
def machine(packages: Path) -> Iterator[Machine]:
    """A machine without the package, and with simulated hosts for its agent."""
    machine = Machine(base_root(), packages)
    add_simulated_hosts(machine, packages)
    yield machine
    machine.close()


@pytest.fixture(scope="module")
def installed(packages: Path) -> Iterator[Machine]:
    """A machine on which the service of the package runs on a simulated host, for all tests of a module."""
    machine = Machine(base_root(), packages)
    try:
        add_simulated_hosts(machine, packages)
        install_and_configure(machine)
        yield machine
    finally:
        machine.close()


def add_simulated_hosts(machine: Machine, shared: Path) -> None:
    """Install dra_simulate, which the package does not contain, where the interpreter of the machine finds it."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "python/dra_simulate", shared / "dra_simulate", ignore=ignored, dirs_exist_ok=True)
    folder = machine.output("python3", "-c", "import site; print(site.getsitepackages()[0])")
    machine.run("mkdir", "--parents", folder)
    machine.run("cp", "--recursive", "/packages/dra_simulate", folder)
    # Otherwise the first run as root would leave byte code.
    machine.run("python3", "-m", "compileall", "-q", folder)


def install_and_configure(machine: Machine) -> None:
    """Install the first version of the package, and let the service manage a simulated host."""
    machine.run("apt-get", "install", "--yes", "--no-install-recommends", "/packages/old.deb")
    machine.write("/etc/dra-agent/config.toml", CONFIG)
    machine.run("systemctl", "restart", "dra-agent")


def apply_claim(machine: Machine, name: str) -> str:
    """Apply a claim of one GPU, and return its CDI spec."""
    before = specs(machine)
    machine.write("/tmp/claim.yaml", CLAIM.replace("NAME", name))
    machine.run("dra-agent", "claim", "apply", "-f", "/tmp/claim.yaml")
    machine.run("dra-agent", "claim", "wait", name, "--timeout", "60")
    (spec,) = specs(machine) - before
    return spec


def specs(machine: Machine) -> set[str]:
    """Return the CDI specs of claims."""
    return {name for name in machine.output("ls", "/run/cdi").split() if name.startswith("dra-agent.internal-claim_")}
