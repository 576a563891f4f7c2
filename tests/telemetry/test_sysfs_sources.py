"""GPUs of AMD and Intel: sensors with the kernel's units, and whose they are."""

from __future__ import annotations

import logging
import struct
from pathlib import Path

import pytest

from dra_agent.host import Host
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


JOULE = 1 << 16
"""Units of the table."""
LAYOUTS = {
    "1.4": (24, 0, 344),
    "1.5": (88, 0, 416),
    "1.6": (16, 36, 1664),
    "1.7": (24, 44, 2000),
    "1.8": (24, 44, 3872),
}
"""By version: offsets of energy_accumulator and prochot_residency_acc, and a size."""


def table(version: str, *, joules: int | None = None, residencies: tuple[int, ...] = (), size: int = 0) -> bytes:
    energy_at, residencies_at, usual_size = LAYOUTS[version]
    if size:
        energy_at, residencies_at, usual_size = 88, 108, size
    major, minor = map(int, version.split("."))
    content = bytearray(b"\xff" * usual_size)
    struct.pack_into("<HBB", content, 0, usual_size, major, minor)
    if joules is not None:
        struct.pack_into("<Q", content, energy_at, joules * JOULE)
    if residencies:
        struct.pack_into("<5I", content, residencies_at, *residencies)
    return bytes(content)


def write_table(host: Path, content: bytes) -> None:
    file = host / "bus/pci/devices" / ADDRESS / "gpu_metrics"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


@pytest.mark.parametrize("version", LAYOUTS)
def test_the_energy_of_an_amd_gpu_is_in_its_table(tmp_path: Path, version: str) -> None:
    write_table(tmp_path, table(version, joules=12_345))
    assert read(tmp_path, gpu("amd")) == DeviceSample(energy_joules=12_345.0)
    write_table(tmp_path, table(version))
    assert read(tmp_path, gpu("amd")) == DeviceSample(), "the kernel leaves ones where a GPU has no value"


def test_the_version_1_6_has_two_layouts(tmp_path: Path) -> None:
    write_table(tmp_path, table("1.6", joules=77, size=384))
    assert read(tmp_path, gpu("amd")) == DeviceSample(energy_joules=77.0)


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0, ()),
        (1 << 0 | 1 << 36, ("power_cap", "thermal")),
        (1 << 22, ("hardware_slowdown",)),
        (1 << 47, ("hardware_slowdown",)),
        (1 << 45, ("thermal",)),
        (1 << 57, ()),
        ((1 << 64) - 1, None),
    ],
)
def test_throttling_of_an_amd_gpu_before_mi300(tmp_path: Path, bits: int, reasons: tuple[str, ...] | None) -> None:
    content = bytearray(b"\xff" * 120)
    struct.pack_into("<HBB", content, 0, 120, 1, 3)
    struct.pack_into("<Q", content, 112, bits)
    write_table(tmp_path, bytes(content))
    sample = read(tmp_path, gpu("amd"))
    assert sample == DeviceSample(throttle_reasons=reasons), "version 1.3 states no unit of its energy"


@pytest.mark.parametrize("version", ["1.6", "1.7", "1.8"])
def test_throttling_of_an_amd_gpu_since_the_sample_before(tmp_path: Path, version: str) -> None:
    source = SourceRegistry(Host(sysfs=tmp_path)).source_of(gpu("amd"))
    assert source is not None
    found = []
    for residencies in ((5, 5, 5, 5, 5), (5, 5, 5, 5, 5), (5, 9, 5, 5, 6), (6, 9, 5, 5, 6), (6, 9, 0, 5, 6)):
        write_table(tmp_path, table(version, residencies=residencies))
        sample = source.read(gpu("amd"))
        assert sample is not None
        found.append(sample.throttle_reasons)
    assert found == [None, (), ("power_cap", "thermal"), ("hardware_slowdown",), ()]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "gpu_metrics has no header"),
        (struct.pack("<HBB", 100, 1, 9) + b"\0" * 96, "gpu_metrics has the version 1.9, which is not known"),
        (struct.pack("<HBB", 100, 3, 0) + b"\0" * 96, "gpu_metrics has the version 3.0, which is not known"),
        (table("1.8", joules=1)[:30], "gpu_metrics of version 1.8 has 30 bytes"),
    ],
)
def test_a_table_that_is_not_known_is_named_once_and_takes_no_other_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, reason: str
) -> None:
    write(tmp_path, AMD)
    write_table(tmp_path, content)
    source = SourceRegistry(Host(sysfs=tmp_path)).source_of(gpu("amd"))
    assert source is not None
    with caplog.at_level(logging.WARNING, "dra_agent"):
        samples = [source.read(gpu("amd")) for _ in range(3)]
    assert all(
        sample is not None and sample.power_watts == 250.0 and sample.energy_joules is None for sample in samples
    )
    assert [record.reason for record in caplog.records] == [reason]  # type: ignore[attr-defined]
