"""The comparison with nvidia-smi finds nothing where both agree, and otherwise a line for each difference."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology import scan
from dra_simulate import build, nvml
from recordings.instances import divide

from .report import address, differences, mig_uuids, read

# The elements that are read, where `nvidia-smi -q -x` has them.
REPORT = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>535.216.03</driver_version>
  <cuda_version>12.2</cuda_version>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:00:04.0">
    <product_name>Tesla T4</product_name>
    <product_brand>NVIDIA</product_brand>
    <product_architecture>Turing</product_architecture>
    <mig_mode><current_mig>N/A</current_mig><pending_mig>N/A</pending_mig></mig_mode>
    <mig_devices>None</mig_devices>
    <minor_number>0</minor_number>
    <uuid>{uuid}</uuid>
    <fb_memory_usage><total>15360 MiB</total><used>0 MiB</used></fb_memory_usage>
  </gpu>
</nvidia_smi_log>
"""


@pytest.fixture(scope="module")
def read_report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Inventory, str]:
    """What the agent finds on a simulated machine with a T4, and the report that is right for it."""
    host = build("vm-1gpu", tmp_path_factory.mktemp("vm") / "host")
    uuid = nvml.read(host.sysfs.parent / "lib").devices[0].uuid
    return collect(host, scan(host), InventorySettings()), REPORT.format(uuid=uuid)


def test_two_that_agree(read_report: tuple[Inventory, str]) -> None:
    inventory, text = read_report
    report = read(text)
    assert (len(report.gpus), report.gpus[0].address, report.gpus[0].memory_mib) == (1, "0000:00:04.0", 15360)
    assert differences(inventory, report) == []


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("<uuid>GPU-", "<uuid>GPU-0", "uuid"),
        ("Tesla T4", "Tesla T5", "productName"),
        ("Turing", "Volta", "architecture"),
        (">NVIDIA<", ">Quadro<", "brand"),
        ("<minor_number>0", "<minor_number>1", "minor"),
        ("<minor_number>0", "<minor_number>1", "node"),
        ("15360 MiB", "15361 MiB", "memory"),
        ("535.216.03", "535.216.04", "driverVersion"),
        ("<cuda_version>12.2", "<cuda_version>12.3", "cudaDriverVersion"),
        ("<current_mig>N/A", "<current_mig>Enabled", "the inventory has it, nvidia-smi does not"),
        ("00000000:00:04.0", "00000000:00:05.0", "nvidia-smi reports it, the inventory does not"),
        (
            "<mig_devices>None",
            "<mig_devices><mig_device><index>0</index><gpu_instance_id>1</gpu_instance_id>"
            "<compute_instance_id>0</compute_instance_id></mig_device>",
            "MIG device 1/0 is missing in the inventory",
        ),
    ],
)
def test_every_difference_is_reported(read_report: tuple[Inventory, str], right: str, wrong: str, found: str) -> None:
    inventory, text = read_report
    assert right in text
    assert any(found in line for line in differences(inventory, read(text.replace(right, wrong))))


def test_values_that_nvidia_smi_omits_are_not_differences(read_report: tuple[Inventory, str]) -> None:
    inventory, text = read_report
    assert differences(inventory, read(text.replace("Turing", "N/A").replace("15360 MiB", "N/A"))) == []


def test_bus_ids_are_written_as_sysfs_does() -> None:
    assert address("00000000:3B:00.0") == "0000:3b:00.0"
    assert address("00010000:01:00.0") == "10000:01:00.0"


def test_uuids_of_mig_devices_are_in_the_list(tmp_path: Path) -> None:
    host = build("mixed", tmp_path / "host")
    divide(host)
    assert host.nvidia_smi is not None
    found = {}
    for arguments in (["-q", "-x"], ["-L"]):
        done = subprocess.run([host.nvidia_smi, *arguments], capture_output=True, text=True, check=True)
        found[arguments[0]] = done.stdout
    inventory = collect(host, scan(host), InventorySettings())
    ours = [device for device in inventory.family("gpu") if "gpu_instance" in device.identity]
    assert len(ours) == 3 and mig_uuids(found["-L"]) == {device.identity["uuid"] for device in ours}
    (gpu,) = read(found["-q"]).gpus
    assert gpu.mig and len(gpu.instances) == 3 and "MIG-" not in found["-q"]
    assert differences(inventory, read(found["-q"])) == []
    less = msgspec.structs.replace(inventory, devices=tuple(one for one in inventory.devices if one is not ours[0]))
    assert any("is missing in the inventory" in line for line in differences(less, read(found["-q"])))
    more = found["-q"].replace("<compute_instance_id>1<", "<compute_instance_id>N/A<")
    assert any("is missing in nvidia-smi" in line for line in differences(inventory, read(more)))
