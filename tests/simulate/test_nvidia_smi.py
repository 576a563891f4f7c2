"""The fake nvidia-smi: the agent's own set-up works with it, and it fails as the tool does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from deadlines import a_minute
from dra_agent.claim import ClaimDevice
from dra_agent.device_setup.timeslice import GpuConfig, TimeSliceSetup
from dra_agent.device_setup.timeslice.setup import TimeSlices
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.prepare.setup import SetupDevice
from dra_agent.topology import scan
from dra_simulate import build, inject, nvml
from dra_simulate.nvidia_smi import time_slices


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return build("l40s", tmp_path / "host")


def smi(host: Host, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert host.nvidia_smi is not None
    return subprocess.run([host.nvidia_smi, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("real_children")
def test_a_claims_time_slices_are_set_and_reset(host: Host, tmp_path: Path) -> None:
    root = tmp_path / "host"
    devices = [device for device in collect(host, scan(host)).devices if device.vendor == "nvidia"]
    uuid = devices[0].identity["uuid"]
    assert smi(host, "-i", uuid, "-c", "EXCLUSIVE_PROCESS").returncode == 0
    slicing = TimeSliceSetup(host.nvidia_smi, tmp_path / "state")
    wanted = GpuConfig(TimeSlices("Long"))
    slicing.check(devices[0], wanted)
    slicing.set_up(
        "a", [SetupDevice(ClaimDevice("n/gpu", devices[0].name, ("gpu",)), devices[0])], wanted, None, a_minute()
    )
    assert time_slices(root) == {uuid: 3}
    assert nvml.read(root / "lib").conditions[uuid].compute_mode == 0
    build("l40s", root)  # an agent that starts again finds what was set
    assert time_slices(root) == {uuid: 3}
    slicing.tear_down("a", [devices[0].name], None, a_minute())
    assert time_slices(root) == {} and nvml.read(root / "lib").conditions[uuid].compute_mode == 3


def test_faults_of_the_library_are_faults_of_the_tool(host: Host, tmp_path: Path) -> None:
    root = tmp_path / "host"
    gpus = [device for device in collect(host, scan(host)).devices if device.vendor == "nvidia"]
    uuid, other = (gpu.identity["uuid"] for gpu in gpus[:2])
    query = ["--query-gpu=compute_mode", "--format=csv,noheader"]
    assert smi(host, "-i", uuid, *query).stdout == "Default\n"
    inject.fail(root, "nvmlDeviceGetHandleByUUID", 15, uuid)
    assert smi(host, "-i", uuid, *query).returncode == 15 and smi(host, "-i", other, *query).returncode == 0
    inject.clear(root)
    inject.hang(root, None, uuid)
    slicing = TimeSliceSetup(host.nvidia_smi, tmp_path / "state", deadline=1)
    with pytest.raises(RetryableError, match="did not respond within 1 s"):
        slicing.set_up(
            "a",
            [SetupDevice(ClaimDevice("n/gpu", gpus[0].name, ("gpu",)), gpus[0])],
            GpuConfig(TimeSlices("Long")),
            None,
            a_minute(),
        )
    inject.clear(root)
    inject.unplug(root, uuid)
    assert smi(host, "-i", uuid, *query).returncode == 6
    assert smi(host, "compute-policy", "-i", other, "--set-timeslice", "4").returncode == 2
    assert smi(host, "-z").returncode == 2


def test_a_host_without_nvidias_driver_has_no_tool(tmp_path: Path) -> None:
    host = build("mi300x", tmp_path / "amd")
    assert host.nvidia_smi is None and not (tmp_path / "amd/bin").exists()


def test_a_missing_library_is_one_line_and_the_exit_code_of_the_tool(host: Host, tmp_path: Path) -> None:
    (tmp_path / "host" / "lib" / nvml.LIBRARY).unlink()
    result = smi(host, "-L")
    assert result.returncode == 12
    assert result.stderr.startswith("NVIDIA-SMI couldn't load the NVML library: ")
    assert len(result.stderr.splitlines()) == 1
