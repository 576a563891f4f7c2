"""Compute modes that an AMD GPU is offered in, by chip, memory mode and version of amdgpu: those that a write gets."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.topology import scan
from dra_simulate import build_machine
from dra_simulate.kernel import SimulatedKernel
from dra_simulate.machine import Function, HostBridge, Machine, NumaNode
from dra_simulate.parts.amd import mi300a, mi300x, mi308x, mi355x
from dra_simulate.parts.bridges import port
from dra_simulate.roles.amd import LINUX_6_8, LINUX_6_18, AmdGpu, AmdgpuDriver
from inventory.test_amd_modes import DIVISIBLE

ADDRESS = "0000:11:00.0"
ATTRIBUTE = f"bus/pci/devices/{ADDRESS}/current_compute_partition"
CHIPS = {"MI300X": mi300x, "MI308X": mi308x, "MI300A": mi300a, "MI355X": mi355x}
DRIVERS = {"linux-6.8": LINUX_6_8, "linux-6.18": LINUX_6_18}
MODES = ("SPX", "DPX", "TPX", "QPX", "CPX")


def machine(chip: Callable[..., Function], memory_mode: str, driver: AmdgpuDriver) -> Machine:
    made = chip(ADDRESS, 0, machine="bench", driver=driver)
    roles = tuple(replace(one, memory_mode=memory_mode) if isinstance(one, AmdGpu) else one for one in made.roles)
    gpu = port("0000:10:01.0", replace(made, roles=roles))
    return Machine("bench", "one GPU", (NumaNode("0-7", 64 << 30, (10,)),), (HostBridge("pci0000:10", 0, (gpu,)),))


def offered(host: Host) -> set[str]:
    found = collect(host, scan(host), DIVISIBLE)
    return {str(one.attributes["computePartition"].value) for one in found.devices if one.consumes_counters}


def accepted(kernel: SimulatedKernel) -> set[str]:
    """Modes that a write gets."""
    modes = set()
    for mode in MODES:
        try:
            kernel.write(ATTRIBUTE, mode)
        except OSError as error:
            assert error.errno == errno.EINVAL
        else:
            modes.add(mode)
    return modes


@pytest.mark.parametrize(
    ("chip", "memory_mode", "driver"), list(product(CHIPS, ["NPS1", "NPS2", "NPS3", "NPS4", "NPS8"], DRIVERS))
)
def test_exactly_the_modes_that_the_driver_takes_are_offered(
    chip: str, memory_mode: str, driver: str, tmp_path: Path
) -> None:
    described = machine(CHIPS[chip], memory_mode, DRIVERS[driver])
    host = build_machine(described, tmp_path / "host")
    modes = offered(host)
    taken = accepted(SimulatedKernel(tmp_path / "host", described))
    assert modes == (taken if len(taken) > 1 or taken - {"SPX"} else set())


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_mi300a_is_offered_in_thirds_of_four_memory_partitions(driver: str, tmp_path: Path) -> None:
    host = build_machine(machine(mi300a, "NPS4", DRIVERS[driver]), tmp_path / "host")
    assert offered(host) == {"TPX", "CPX"}


@pytest.mark.parametrize("driver", DRIVERS)
def test_no_eighths_of_two_memory_partitions_are_offered(driver: str, tmp_path: Path) -> None:
    host = build_machine(machine(mi300x, "NPS2", DRIVERS[driver]), tmp_path / "host")
    assert offered(host) == {"DPX"}


def test_a_kernel_that_allows_more_than_the_table_is_believed(tmp_path: Path) -> None:
    # ROCm 7.13 switches an MI350X to QPX with NPS2 (release notes).
    host = build_machine(machine(mi355x, "NPS2", LINUX_6_18), tmp_path / "host")
    write(host, "available_compute_partition", "DPX, QPX")
    assert offered(host) == {"DPX", "QPX"}


def test_the_memory_modes_of_the_mode_that_the_kernel_describes_are_believed(tmp_path: Path) -> None:
    host = build_machine(machine(mi300x, "NPS1", LINUX_6_18), tmp_path / "host")
    write(host, "compute_partition_config/xcp_config", "QPX")
    write(host, "compute_partition_config/supported_nps_configs", "NPS4")
    assert offered(host) == {"SPX", "DPX", "CPX"}


def write(host: Host, attribute: str, text: str) -> None:
    path = (host.sysfs / "bus/pci/devices" / ADDRESS).resolve() / attribute
    path.chmod(0o644)
    path.write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("chip", "modes", "memory", "resources"),
    [
        ("MI300X", "SPX, DPX, QPX, CPX", "NPS1", {"xcc": (8, 1), "dma": (16, 1), "dec": (4, 1), "jpeg": (32, 1)}),
        # https://www.kernel.org/doc/html/latest/gpu/amdgpu/driver-misc.html names the files; the numbers are of a host.
        ("MI308X", "SPX, DPX, CPX", "NPS1", {"xcc": (4, 1), "dma": (8, 1), "dec": (4, 1), "jpeg": (32, 1)}),
        ("MI300A", "SPX, TPX, CPX", None, {"xcc": (6, 1), "dma": (12, 1), "dec": (3, 1), "jpeg": (24, 1)}),
    ],
)
def test_the_simulated_kernel_describes_the_modes_of_a_chip(
    chip: str, modes: str, memory: str | None, resources: dict[str, tuple[int, int]], tmp_path: Path
) -> None:
    host = build_machine(machine(CHIPS[chip], "NPS1", LINUX_6_18), tmp_path / "host")
    folder = host.sysfs / "bus/pci/devices" / ADDRESS / "compute_partition_config"
    assert (folder / "supported_xcp_configs").read_text() == f"{modes}\n"
    assert (folder / "xcp_config").read_text() == "SPX\n"
    described = folder / "supported_nps_configs"
    # The driver has the file only where the firmware reports memory modes: not on an APU (gmc_v9_0_init_nps_details).
    assert (described.read_text() if described.exists() else None) == (f"{memory}\n" if memory else None)
    found = {
        name: tuple(int((folder / name / file).read_text()) for file in ("num_inst", "num_shared"))
        for name in resources
    }
    assert found == resources


def test_a_host_of_an_older_kernel_has_no_description(tmp_path: Path) -> None:
    host = build_machine(machine(mi300x, "NPS4", LINUX_6_8), tmp_path / "host")
    folder = host.sysfs / "bus/pci/devices" / ADDRESS
    assert not (folder / "compute_partition_config").exists()
    assert (folder / "available_compute_partition").read_text() == "SPX, DPX, QPX, CPX\n", "in every memory mode"
