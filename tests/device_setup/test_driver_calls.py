"""Settings of a GPU that shares change through NVML: compute mode and memory limits, with the simulated library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from device_setup.test_mig import MACHINE
from dra_agent.device_setup.mig.driver import MigDriver
from dra_agent.device_setup.mps.sharing import EXCLUSIVE_PROCESS, ComputeMode
from dra_agent.device_setup.shares.limiter import CgroupMemory, DriverLimit
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_agent.inventory.nvidia.profiles import Placement
from dra_simulate import build_machine, inject
from dra_simulate.machine import HostBridge, NvidiaDriver
from dra_simulate.models import A100_PCIE, GIB
from dra_simulate.parts.nvidia import gpu
from eventually import DEADLINE_S

ADDRESS = "0000:01:00.0"
UNKNOWN = "GPU-99999999-2222-3333-4444-555555555555"


AMPERE = replace(
    MACHINE,
    bridges=(HostBridge("pci0000:00", 0, (gpu(ADDRESS, A100_PCIE, 0, machine="single"),)),),
    nvidia=NvidiaDriver("615.71.05", 13040),
)


@dataclass(frozen=True)
class NvmlHost:
    """A simulated host and the UUID of its first GPU."""

    host: Host
    root: Path
    uuid: str
    driver: MigDriver


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("host")
    build_machine(AMPERE, root)
    return root


@pytest.fixture
def nvml_host(tree: Path) -> Iterator[NvmlHost]:
    host = Host(tree / "sys", tree / "dev", tree / "proc", tree / "lib" / "libnvidia-ml.so.1")
    # All callers of a test share this process of the library.
    nvml = acquire(host.nvml_library, DEADLINE_S)
    nvml.start()
    handle = nvml.call("nvmlDeviceGetHandleByPciBusId", ADDRESS.encode(), about=ADDRESS)
    uuid = nvml.call("nvmlDeviceGetUUID", handle, about=ADDRESS)
    yield NvmlHost(host, tree, uuid, MigDriver(nvml, host, ADDRESS, {}))
    nvml.close()


def test_the_compute_mode_is_set_and_restored(nvml_host: NvmlHost) -> None:
    modes = ComputeMode(nvml_host.host.nvml_library, DEADLINE_S)
    original = modes.get(nvml_host.uuid, ADDRESS)
    modes.set(nvml_host.uuid, ADDRESS, EXCLUSIVE_PROCESS)
    assert original != EXCLUSIVE_PROCESS == modes.get(nvml_host.uuid, ADDRESS)
    modes.restore(nvml_host.uuid, ADDRESS, original)
    assert modes.get(nvml_host.uuid, ADDRESS) == original
    modes.close()
    modes.close()
    assert modes.get(nvml_host.uuid, ADDRESS) == original, "it can be used again after it was closed"
    modes.close()


def test_the_mode_of_a_removed_gpu_needs_no_restoring(nvml_host: NvmlHost) -> None:
    modes = ComputeMode(nvml_host.host.nvml_library, DEADLINE_S)
    modes.restore(UNKNOWN, ADDRESS, 0)
    with pytest.raises(RetryableError):
        modes.set(UNKNOWN, ADDRESS, 0)
    modes.close()


def test_a_limit_of_a_cgroup_is_set_and_read(nvml_host: NvmlHost, tmp_path: Path) -> None:
    limits = DriverLimit(nvml_host.host.nvml_library, DEADLINE_S)
    limits.set(nvml_host.uuid, ADDRESS, tmp_path, 4 * GIB)
    assert limits.get(nvml_host.uuid, ADDRESS, tmp_path) == CgroupMemory(4 * GIB, 0)
    assert limits.get(nvml_host.uuid, ADDRESS, tmp_path / "another") == CgroupMemory(None, 0)
    limits.close()


def test_a_mig_mode_that_needs_a_reset_does_not_stay_pending(nvml_host: NvmlHost) -> None:
    """The mode of an A100 changes with a reset of the GPU, which another claim could cause."""
    with pytest.raises(RetryableError, match="switched on with a reset of the GPU only"):
        nvml_host.driver.set_mode(True)
    assert nvml_host.driver.mode() == (False, False)


@pytest.mark.parametrize(("code", "kind"), [(2, PermanentError), (999, RetryableError)])
def test_a_placement_that_the_driver_does_not_know_is_a_permanent_error(
    nvml_host: NvmlHost, code: int, kind: type[Exception]
) -> None:
    inject.fail(nvml_host.root, "nvmlDeviceCreateGpuInstanceWithPlacement", code, machine=AMPERE)
    with pytest.raises(kind):
        nvml_host.driver.make(9, Placement(0, 4))
    inject.clear(nvml_host.root)
