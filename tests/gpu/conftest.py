"""A machine with NVIDIA's driver, as the agent sees it and as nvidia-smi does. Nothing here changes a setting.

`make test-gpu` runs this folder on the GPUs of this machine, and writes a report and a recording to target/gpu. Without
it the same tests run on simulated hosts, whose nvidia-smi reports what the fake library returns. With the name of such
a host in DRA_AGENT_TEST_GPU, the command itself is tried on it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import dra_simulate
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.nvidia.nvml_client import NvmlClient, acquire
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.tracker import InventoryTracker
from dra_agent.topology import Topology, scan
from dra_simulate import inject
from recordings.instances import divide

from .journal import Journal
from .privileges import NO_ACCESS
from .signs import find_signs, missing, smi_of

TIMEOUT_S = 60.0
"""Seconds for one response of nvidia-smi: without persistence mode it initializes every GPU."""
SIMULATED = ("vm-1gpu", "mixed", "hgx-h200")
"""One GPU; MIG instances; pairs of GPUs."""
UNPRIVILEGED = "-unprivileged"
"""End of the name of a simulated host whose library refuses what it refuses to a process without permissions."""
COMMAND = os.environ.get("DRA_AGENT_TEST_GPU", "")
"""Set by `make test-gpu`: "1" for this machine, or a simulated host."""
REAL = COMMAND == "1"
DEFAULT_TARGET = Path(__file__).parents[2] / "target/gpu"
TARGET = Path(os.environ.get("DRA_AGENT_TEST_GPU_TARGET", DEFAULT_TARGET)) if COMMAND else None
"""Directory of the report and the recording; None without the command."""

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
"""The settings of a GPU that can be changed."""


@dataclass(frozen=True, slots=True)
class Smi:
    """The driver's own tool."""

    path: Path

    def query(self, *fields: str) -> list[dict[str, str]]:
        """Ask for fields of every GPU; numbers come without units."""
        lines = self.ask(f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits").splitlines()
        return [dict(zip(fields, (cell.strip() for cell in line.split(",")), strict=True)) for line in lines]

    def ask(self, *arguments: str) -> str:
        """Return its output."""
        done = subprocess.run([self.path, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, f"nvidia-smi {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="session", params=["this machine"] if REAL else [COMMAND] if COMMAND else SIMULATED)
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """The host that is examined. Fails where there is a sign of a GPU and a part of its driver is missing."""
    if REAL:
        host = Host()
        signs = find_signs(host)
        if not signs:
            pytest.skip("no sign of an NVIDIA GPU: no driver, no PCI function, no /dev/nvidia*, no library")
        problem = missing(host, signs, smi_of(host))
        assert not problem, problem
        return host
    profile = request.param.removesuffix(UNPRIVILEGED)
    host = dra_simulate.build(profile, tmp_path_factory.mktemp("gpu") / profile)
    if profile == "mixed":
        divide(host)
    if profile != request.param:
        inject.set_access(host.sysfs.parent, NO_ACCESS)
    return host


@pytest.fixture(scope="session")
def journal(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    """The report, written when all tests have run."""
    made = Journal(TARGET or tmp_path_factory.mktemp("report"))
    made.add("Signs", find_signs(host, None if REAL else ()))
    yield made
    made.write()


@pytest.fixture(scope="session")
def smi(host: Host) -> Smi:
    """The driver's own tool."""
    found = smi_of(host)
    assert found is not None
    return Smi(found)


@pytest.fixture(scope="module")
def settings_before(smi: Smi) -> list[dict[str, str]]:
    """What is set on every GPU before the agent has read any."""
    return smi.query(*SETTINGS)


@pytest.fixture(scope="module")
def nvml(settings_before: list[dict[str, str]], host: Host) -> Iterator[NvmlClient]:
    """The library as the agent uses it, with the agent's deadlines."""
    library = acquire(host.nvml_library, InventorySettings().nvml_timeout)
    library.start()
    yield library
    library.close()


@pytest.fixture(scope="session")
def topology(host: Host) -> Topology:
    """What the agent finds on the PCI bus."""
    return scan(host, distances=True)


@pytest.fixture(scope="module")
def tracker(
    settings_before: list[dict[str, str]], host: Host, topology: Topology, journal: Journal
) -> Iterator[InventoryTracker]:
    """The agent's own scan of the host, as `dra-agent run` keeps it, with the deadlines that are shipped."""
    began = time.monotonic()
    made = InventoryTracker(Collector(host, InventorySettings()), topology)
    journal.add("Duration of the first scan", f"{time.monotonic() - began:.3f} s")
    yield made
    made.close()


@pytest.fixture(scope="module")
def inventory(tracker: InventoryTracker) -> Inventory:
    """What it found."""
    return tracker.inventory


@pytest.fixture(scope="session")
def addresses(topology: Topology) -> list[str]:
    """The GPUs that have NVIDIA's driver."""
    found = [one.pci_address for one in topology.devices if one.driver == "nvidia" and one.kind == "gpu"]
    assert found, "the driver is loaded and has no GPU"
    return found
