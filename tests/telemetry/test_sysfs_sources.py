"""GPUs of AMD and Intel: sensors with the kernel's units, and whose they are."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dra_agent.host import Host
from dra_agent.inventory.api import Attribute, Capacity
from dra_agent.inventory.model import Device, device_name
from dra_agent.telemetry.model import DeviceSample
from dra_agent.telemetry.sources.registry import SourceRegistry

ADDRESS = "0000:0c:00.0"


def gpu(vendor: str, *parts: str | int, **identity: str) -> Device:
    name = device_name("gpu", ADDRESS, *parts)
    return Device(name=name, family="gpu", vendor=vendor, pci_address=ADDRESS, attributes={}, identity=identity)


def read(host: Path, device: Device) -> DeviceSample | None:
    source = SourceRegistry(Host(sysfs=host)).source_of(device)
    return None if source is None else source.read(device)


def write(host: Path, files: dict[str, object]) -> None:
    for name, value in files.items():
        file = host / "bus/pci/devices" / ADDRESS / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")


AMD = {
    "gpu_busy_percent": 37,
    "mem_busy_percent": 5,
    "mem_info_vram_total": 64 << 30,
    "mem_info_vram_used": 1 << 30,
    "hwmon/hwmon3/name": "amdgpu",
    "hwmon/hwmon3/power1_average": 250_000_000,
    "hwmon/hwmon3/power1_cap": 500_000_000,
    "hwmon/hwmon3/temp2_input": 61_000,
    "hwmon/hwmon3/freq1_input": 1_700_000_000,
}


def test_an_amd_gpu(tmp_path: Path) -> None:
    write(tmp_path, AMD)
    assert read(tmp_path, gpu("amd")) == DeviceSample(
        gpu_utilization_ratio=0.37,
        memory_utilization_ratio=0.05,
        memory_used_bytes=1 << 30,
        memory_limit_bytes=64 << 30,
        power_watts=250.0,
        power_limit_watts=500.0,
        temperature_celsius=61.0,
        sm_clock_hertz=1.7e9,
    )


def test_a_partition_of_an_amd_gpu_has_no_values_of_its_gpu(tmp_path: Path) -> None:
    write(tmp_path, AMD)
    assert read(tmp_path, gpu("amd", "cpx", 3)) is None
    assert read(tmp_path, gpu("amd", parent="gpu-0000-0b-00-0")) is None


def test_an_apu_has_no_separate_memory(tmp_path: Path) -> None:
    write(tmp_path, {"gpu_busy_percent": 0, "mem_info_vram_total": 0, "mem_info_vram_used": 0})
    assert read(tmp_path, gpu("amd")) == DeviceSample(gpu_utilization_ratio=0.0)


def apu(capacity: str) -> Device:
    return msgspec.structs.replace(
        gpu("amd"), attributes={"integrated": Attribute.of(True)}, capacity={"memory": Capacity(capacity)}
    )


def test_an_apu_uses_the_memory_of_the_host(tmp_path: Path) -> None:
    files = {"mem_info_vram_total": 512 << 20, "mem_info_vram_used": 500 << 20}
    # GTT has its own, larger limit here (amdgpu.gttsize); the capacity is TTM's.
    write(tmp_path, {**files, "mem_info_gtt_total": 124 << 30, "mem_info_gtt_used": 20 << 30})
    assert read(tmp_path, apu("62Gi")) == DeviceSample(memory_used_bytes=20 << 30, memory_limit_bytes=62 << 30)
    # An MI300A reports no carve-out at all.
    write(tmp_path, {"mem_info_vram_total": 0, "mem_info_vram_used": 0})
    assert read(tmp_path, apu("62Gi")) == DeviceSample(memory_used_bytes=20 << 30, memory_limit_bytes=62 << 30)


def test_an_apu_with_a_large_carve_out_uses_that(tmp_path: Path) -> None:
    files = {"mem_info_vram_total": 96 << 30, "mem_info_vram_used": 1 << 30}
    write(tmp_path, {**files, "mem_info_gtt_total": 15 << 30, "mem_info_gtt_used": 2 << 30})
    assert read(tmp_path, apu("96Gi")) == DeviceSample(memory_used_bytes=1 << 30, memory_limit_bytes=96 << 30)


def test_an_intel_gpu(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"hwmon/hwmon2/name": "xe", "hwmon/hwmon2/energy1_input": 12_000_000, "hwmon/hwmon2/power1_max": 150_000_000},
    )
    assert read(tmp_path, gpu("intel")) == DeviceSample(energy_joules=12.0, power_limit_watts=150.0)


def test_a_disabled_power_limit_is_not_a_limit_of_0(tmp_path: Path) -> None:
    write(tmp_path, {"hwmon/hwmon2/name": "xe", "hwmon/hwmon2/power1_max": 0})
    assert read(tmp_path, gpu("intel")) == DeviceSample()


@pytest.mark.parametrize("folders", [("hwmon3", "hwmon4", "hwmon5"), ("hwmon5", "hwmon3", "hwmon4")])
def test_the_energy_of_an_intel_gpu_is_of_the_whole_device(tmp_path: Path, folders: tuple[str, ...]) -> None:
    for folder, name, joules in zip(folders, ("i915", "i915_gt0", "i915_gt1"), (30, 10, 7), strict=True):
        write(tmp_path, {f"hwmon/{folder}/name": name, f"hwmon/{folder}/energy1_input": joules * 1_000_000})
    assert read(tmp_path, gpu("intel")) == DeviceSample(energy_joules=30.0)


def test_sensors_of_a_part_are_not_those_of_the_device(tmp_path: Path) -> None:
    write(tmp_path, {"hwmon/hwmon3/name": "i915_gt0", "hwmon/hwmon3/energy1_input": 10_000_000})
    assert read(tmp_path, gpu("intel")) is None


def test_an_amd_gpu_without_an_average_power(tmp_path: Path) -> None:
    files = {"hwmon/hwmon3/name": "amdgpu", "hwmon/hwmon3/power1_input": 90_000_000, "hwmon/hwmon3/temp1_input": 40_000}
    write(tmp_path, {**files, "hwmon/hwmon3/temp2_input": 55_000})
    assert read(tmp_path, gpu("amd")) == DeviceSample(power_watts=90.0, temperature_celsius=40.0)


def test_a_sensor_that_is_not_a_number_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {**AMD, "hwmon/hwmon3/power1_cap": "much"})
    with pytest.raises(ValueError, match="much"):
        read(tmp_path, gpu("amd"))


def test_other_vendors_have_no_source(tmp_path: Path) -> None:
    assert read(tmp_path, gpu("0x1bcf")) is None
