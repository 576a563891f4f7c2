"""What the comparison with nvidia-smi finds: nothing where both agree, a line for everything where they do not."""

from __future__ import annotations

import pytest

from dra_agent.inventory import Inventory, InventorySettings, collect
from dra_agent.simulate import build, nvml
from dra_agent.topology import scan

from .report import address, differences, read

# The elements that are read, where `nvidia-smi -q -x` has them.
REPORT = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>535.216.03</driver_version>
  <cuda_version>12.2</cuda_version>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:00:04.0">
    <product_name>Tesla T4</product_name>
    <product_brand>Tesla</product_brand>
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
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> tuple[Inventory, str]:
    """What the agent finds on a simulated machine with a T4, and the report that is right for it."""
    host = build("vm-1gpu", tmp_path_factory.mktemp("vm") / "host")
    uuid = nvml.read(host.sysfs.parent / "lib").devices[0].uuid
    return collect(host, scan(host), InventorySettings()), REPORT.format(uuid=uuid)


def test_two_that_agree(looked_at: tuple[Inventory, str]) -> None:
    inventory, text = looked_at
    report = read(text)
    assert (len(report.gpus), report.gpus[0].address, report.gpus[0].memory_mib) == (1, "0000:00:04.0", 15360)
    assert differences(inventory, report) == []


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("<uuid>GPU-", "<uuid>GPU-0", "uuid"),
        ("Tesla T4", "Tesla T5", "productName"),
        ("Turing", "Volta", "architecture"),
        (">Tesla<", ">Quadro<", "brand"),
        ("<minor_number>0", "<minor_number>1", "minor"),
        ("<minor_number>0", "<minor_number>1", "node"),
        ("15360 MiB", "15361 MiB", "memory"),
        ("535.216.03", "535.216.04", "driverVersion"),
        ("<cuda_version>12.2", "<cuda_version>12.3", "cudaDriverVersion"),
        ("<current_mig>N/A", "<current_mig>Enabled", "the inventory has it, nvidia-smi does not"),
        ("00000000:00:04.0", "00000000:00:05.0", "nvidia-smi reports it, the inventory does not"),
        (
            "<mig_devices>None",
            "<mig_devices><mig_device><uuid>MIG-1</uuid></mig_device>",
            "MIG device MIG-1 is missing",
        ),
    ],
)
def test_everything_that_differs_is_told(looked_at: tuple[Inventory, str], right: str, wrong: str, found: str) -> None:
    inventory, text = looked_at
    assert right in text
    assert any(found in line for line in differences(inventory, read(text.replace(right, wrong))))


def test_what_nvidia_smi_does_not_tell_differs_from_nothing(looked_at: tuple[Inventory, str]) -> None:
    inventory, text = looked_at
    assert differences(inventory, read(text.replace("Turing", "N/A").replace("15360 MiB", "N/A"))) == []


def test_bus_ids_are_written_as_sysfs_does() -> None:
    assert address("00000000:3B:00.0") == "0000:3b:00.0"
    assert address("00010000:01:00.0") == "10000:01:00.0"
