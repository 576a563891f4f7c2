"""A machine with NVIDIA's driver, as the agent sees it and as nvidia-smi does. Nothing here changes a setting.

`make test-gpu` runs this folder; elsewhere, and without a driver, tests that need one are skipped and say why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.inventory import Inventory, InventorySettings
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.nvidia.nvml_client import NvmlClient, acquire
from dra_agent.inventory.tracker import InventoryTracker
from dra_agent.topology import Topology, scan

DEADLINE = 60.0
"""Seconds for one answer of nvidia-smi: without persistence mode it initialises every GPU."""


SETTINGS = (
    "pci.bus_id",
    "persistence_mode",
    "compute_mode",
    "mig.mode.current",
    "mig.mode.pending",
    "ecc.mode.current",
    "ecc.mode.pending",
    "power.limit",
    "clocks.max.sm",
    "driver_version",
)
"""Whatever of a GPU somebody can set."""


@dataclass(frozen=True, slots=True)
class Smi:
    """The driver's own tool."""

    path: str

    def query(self, *fields: str) -> list[dict[str, str]]:
        """Ask for fields of every GPU; numbers come without units."""
        lines = self._ask(f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits").splitlines()
        return [dict(zip(fields, (cell.strip() for cell in line.split(",")), strict=True)) for line in lines]

    def everything(self) -> str:
        """Ask for the whole report, as XML."""
        return self._ask("-q", "-x")

    def _ask(self, *arguments: str) -> str:
        done = subprocess.run([self.path, *arguments], capture_output=True, text=True, timeout=DEADLINE, check=False)
        assert done.returncode == 0, f"nvidia-smi {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="session")
def host() -> Host:
    """The host that is looked at; skips where there is nothing to look at."""
    if os.environ.get("DRA_AGENT_TEST_GPU") != "1":
        pytest.skip("looks at the GPUs of this machine: run `make test-gpu`")
    if not Path("/proc/driver/nvidia/version").exists():
        pytest.skip("no NVIDIA driver is loaded (there is no /proc/driver/nvidia/version)")
    return Host()


@pytest.fixture(scope="session")
def smi(host: Host) -> Smi:
    """The driver's own tool; skips where it is not installed."""
    found = shutil.which("nvidia-smi")
    if found is None:
        pytest.skip("nvidia-smi is not installed, and there is nothing else to compare with")
    return Smi(found)


@pytest.fixture(scope="session")
def settings_before(smi: Smi) -> list[dict[str, str]]:
    """What is set on every GPU before the agent has looked at any."""
    return smi.query(*SETTINGS)


@pytest.fixture(scope="session")
def nvml(settings_before: list[dict[str, str]], host: Host) -> Iterator[NvmlClient]:
    """The library as the agent uses it."""
    library = acquire(host.nvml_library, 30.0)
    library.start()
    yield library
    library.close()


@pytest.fixture(scope="session")
def topology(host: Host) -> Topology:
    """What the agent finds on the PCI bus."""
    return scan(host)


@pytest.fixture(scope="session")
def watch(settings_before: list[dict[str, str]], host: Host, topology: Topology) -> Iterator[InventoryTracker]:
    """The agent's own look at the host, as `dra-agent run` keeps it."""
    made = InventoryTracker(Collector(host, InventorySettings(nvml_timeout=30.0)), topology)
    yield made
    made.close()


@pytest.fixture(scope="session")
def inventory(watch: InventoryTracker) -> Inventory:
    """What it found."""
    return watch.inventory
