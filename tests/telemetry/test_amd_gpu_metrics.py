"""The table `gpu_metrics` of amdgpu in its versions, and the counts of memory errors."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

import dra_simulate
from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.running_agent import check_telemetry
from dra_agent.host import Host
from dra_agent.inventory.model import Device, device_name
from dra_agent.telemetry.model import DeviceSample, IncompleteError
from dra_agent.telemetry.sources.amd import AmdSource
from telemetry.rig import Rig

ADDRESS = "0000:0c:00.0"
GPU = Device(device_name("gpu", ADDRESS), "gpu", "amd", ADDRESS, {})


def read(sysfs: Path) -> DeviceSample | None:
    return AmdSource(Host(sysfs=sysfs)).read(GPU)


def write(sysfs: Path, name: str, content: bytes) -> None:
    file = sysfs / "bus/pci/devices" / ADDRESS / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


JOULE = 1 << 16
"""Units of the table."""
LAYOUTS = {
    "1.4": (24, 0, 104, 88, 288),
    "1.5": (88, 0, 176, 152, 360),
    "1.6": (16, 36, 128, 104, 1664),
    "1.7": (24, 44, 136, 112, 2208),
    "1.8": (24, 44, 136, 112, 3872),
}
"""By version: offsets of energy_accumulator, prochot_residency_acc, xgmi_read_data_acc and pcie_replay_count_acc, and a
size."""
EARLY_1_6 = (88, 108, 200, 176, 384)
ABSENT = (1 << 64) - 1


def table(
    version: str,
    *,
    joules: int | None = None,
    residencies: tuple[int, ...] = (),
    xgmi: tuple[int, ...] = (),
    replays: int | None = None,
    layout: tuple[int, int, int, int, int] | None = None,
) -> bytes:
    energy_at, residencies_at, xgmi_at, replays_at, size = layout or LAYOUTS[version]
    content = bytearray(b"\xff" * size)
    struct.pack_into("<HBB", content, 0, size, *map(int, version.split(".")))
    if joules is not None:
        struct.pack_into("<Q", content, energy_at, joules * JOULE)
    if residencies:
        struct.pack_into("<5I", content, residencies_at, *residencies)
    if xgmi:
        struct.pack_into("<16Q", content, xgmi_at, *xgmi)
    if replays is not None:
        struct.pack_into("<Q", content, replays_at, replays)
    return bytes(content)


Attribute = tuple[int, int, int, str, tuple[int, ...]]
"""Unit, number of the type, number of the attribute, format, values."""


def attribute(name: int, values: tuple[int, ...], kind: str = "Q", unit: int = 0) -> Attribute:
    return unit, "BbHhIiQq".index(kind), name, kind, values


def list_table(*attributes: Attribute) -> bytes:
    """Return a table of version 1.9."""
    body = b"".join(
        struct.pack("<Q", unit << 24 | kind << 20 | name << 10 | len(values))
        + struct.pack(f"<{len(values)}{code}", *values)
        for unit, kind, name, code, values in attributes
    )
    return struct.pack("<HBBi", 8 + len(body), 1, 9, len(attributes)) + body


@pytest.mark.parametrize("version", LAYOUTS)
def test_the_energy_of_a_gpu_is_in_its_table(tmp_path: Path, version: str) -> None:
    write(tmp_path, "gpu_metrics", table(version, joules=12_345))
    assert read(tmp_path) == DeviceSample(energy_joules=12_345.0)
    write(tmp_path, "gpu_metrics", table(version))
    assert read(tmp_path) == DeviceSample(), "the kernel leaves ones where a GPU has no value"


def test_the_version_1_6_has_two_layouts(tmp_path: Path) -> None:
    xgmi = (1, 0, 0, 0, 0, 0, 0, 0, *[0] * 8)
    write(tmp_path, "gpu_metrics", table("1.6", joules=77, xgmi=xgmi, layout=EARLY_1_6))
    assert read(tmp_path) == DeviceSample(energy_joules=77.0, xgmi_read_bytes=1024, xgmi_write_bytes=0)


@pytest.mark.parametrize("version", LAYOUTS)
def test_traffic_of_all_links_of_xgmi(tmp_path: Path, version: str) -> None:
    links = (1, 2, 3, 4, 5, 6, 7, ABSENT, 100, 0, 0, 0, 0, 0, 0, ABSENT)
    write(tmp_path, "gpu_metrics", table(version, xgmi=links))
    assert read(tmp_path) == DeviceSample(xgmi_read_bytes=28 * 1024, xgmi_write_bytes=100 * 1024)


@pytest.mark.parametrize("version", LAYOUTS)
@pytest.mark.parametrize("replays", [0, 3])
def test_replays_of_the_pcie_link(tmp_path: Path, version: str, replays: int) -> None:
    write(tmp_path, "gpu_metrics", table(version, replays=replays))
    assert read(tmp_path) == DeviceSample(pcie_replays=replays)
    write(tmp_path, "gpu_metrics", table("1.6", replays=replays, layout=EARLY_1_6))
    assert read(tmp_path) == DeviceSample(pcie_replays=replays)
    write(tmp_path, "gpu_metrics", list_table(attribute(25, (replays,))))
    assert read(tmp_path) == DeviceSample(pcie_replays=replays)


def test_files_of_pcie_with_other_meanings_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, "pcie_bw", b"1000 2000 256\n")
    write(tmp_path, "pcie_replay_count", b"0\n")
    assert read(tmp_path) == DeviceSample()


def test_a_gpu_without_links_has_no_traffic_of_0(tmp_path: Path) -> None:
    write(tmp_path, "gpu_metrics", table("1.8", xgmi=(0,) * 16))
    assert read(tmp_path) == DeviceSample()


@pytest.mark.parametrize(("version", "offset"), [((1, 3), 112), ((2, 2), 120), ((2, 4), 120)])
@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0, ()),
        (1 << 0 | 1 << 36, ("power_cap", "thermal")),
        (1 << 22, ("hardware_slowdown",)),
        (1 << 47, ("hardware_slowdown",)),
        (1 << 45, ("thermal",)),
        (1 << 57, ()),
        (ABSENT, None),
    ],
)
def test_throttling_of_a_gpu_before_mi300(
    tmp_path: Path, version: tuple[int, int], offset: int, bits: int, reasons: tuple[str, ...] | None
) -> None:
    content = bytearray(b"\xff" * 168)
    struct.pack_into("<HBB", content, 0, len(content), *version)
    struct.pack_into("<Q", content, offset, bits)
    write(tmp_path, "gpu_metrics", bytes(content))
    assert read(tmp_path) == DeviceSample(throttle_reasons=reasons), "version 1.3 states no unit of its energy"


def residency_tables(version: str) -> list[bytes]:
    steps = ((5, 5, 5, 5, 5), (5, 5, 5, 5, 5), (5, 9, 5, 5, 6), (6, 9, 5, 5, 6), (6, 9, 0, 5, 6))
    if version != "1.9":
        return [table(version, residencies=step) for step in steps]
    return [list_table(*(attribute(10 + n, (value,), "I") for n, value in enumerate(step))) for step in steps]


@pytest.mark.parametrize("version", ["1.6", "1.7", "1.8", "1.9"])
def test_throttling_since_the_sample_before(tmp_path: Path, version: str) -> None:
    source, found = AmdSource(Host(sysfs=tmp_path)), []
    for content in residency_tables(version):
        write(tmp_path, "gpu_metrics", content)
        sample = source.read(GPU)
        assert sample is not None
        found.append(sample.throttle_reasons)
    assert found == [None, (), ("power_cap", "thermal"), ("hardware_slowdown",), ()]


def test_throttling_does_not_begin_before_a_sample_without_a_table(tmp_path: Path) -> None:
    source, tables = AmdSource(Host(sysfs=tmp_path)), residency_tables("1.8")
    write(tmp_path, "gpu_metrics", tables[0])
    source.read(GPU)
    write(tmp_path, "gpu_metrics", b"")
    with pytest.raises(IncompleteError):
        source.read(GPU)
    write(tmp_path, "gpu_metrics", tables[2])
    assert source.read(GPU) == DeviceSample()


def test_a_table_that_is_a_list_of_attributes(tmp_path: Path) -> None:
    content = list_table(
        attribute(0, (42,), "H", unit=2),
        attribute(33, (2098, 2115, 0xFFFF), "H", unit=1),
        attribute(7, (4000 * JOULE,)),
        attribute(10, (0,), "I"),
        attribute(11, (0xFFFF_FFFF,), "I"),
        attribute(29, (3, 4, ABSENT), unit=9),
        attribute(30, (5, 0, ABSENT), unit=9),
        attribute(900, (-1, 7), "b"),
    )
    write(tmp_path, "gpu_metrics", content)
    source = AmdSource(Host(sysfs=tmp_path))
    assert source.read(GPU) == DeviceSample(energy_joules=4000.0, xgmi_read_bytes=7 * 1024, xgmi_write_bytes=5 * 1024)
    sample = source.read(GPU)
    assert sample is not None and sample.throttle_reasons == (), "one residency is known"


def test_a_list_without_the_attributes_has_no_values(tmp_path: Path) -> None:
    write(
        tmp_path, "gpu_metrics", list_table(attribute(7, (ABSENT,)), attribute(29, (ABSENT,)), attribute(30, (ABSENT,)))
    )
    assert read(tmp_path) == DeviceSample()


@pytest.mark.parametrize("version", [(1, 0), (1, 2), (2, 1), (3, 0)])
def test_a_known_version_without_these_fields_has_no_values(tmp_path: Path, version: tuple[int, int]) -> None:
    write(tmp_path, "gpu_metrics", struct.pack("<HBB", 100, *version) + b"\0" * 96)
    assert read(tmp_path) == DeviceSample()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "gpu_metrics has no header"),
        (struct.pack("<HBB", 100, 1, 10) + b"\0" * 96, "gpu_metrics has the version 1.10, which is not known"),
        (struct.pack("<HBB", 100, 4, 0) + b"\0" * 96, "gpu_metrics has the version 4.0, which is not known"),
        (table("1.8", joules=1)[:30], "gpu_metrics of version 1.8 has 30 bytes"),
        (list_table(attribute(7, (1,)))[:-1], "gpu_metrics of version 1.9 has 23 bytes"),
        (struct.pack("<HBBi", 8, 1, 9, -1), "gpu_metrics of version 1.9 has 8 bytes"),
        (struct.pack("<HBBiQ", 16, 1, 9, 1, 8 << 20 | 1), "an attribute of the type 8, which is not known"),
    ],
)
def test_a_table_that_is_not_known_is_named_and_takes_no_other_value(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    write(tmp_path, "gpu_metrics", content)
    write(tmp_path, "gpu_busy_percent", b"37\n")
    write(tmp_path, "hwmon/hwmon3/name", b"amdgpu\n")
    write(tmp_path, "hwmon/hwmon3/power1_average", b"250000000\n")
    with pytest.raises(IncompleteError, match=reason) as raised:
        read(tmp_path)
    assert raised.value.sample == DeviceSample(gpu_utilization_ratio=0.37, power_watts=250.0)


@pytest.mark.parametrize(
    ("text", "corrected", "uncorrected"),
    [
        ("ue: 2\nce: 7\n", 7, 2),
        ("ue: 0\nce: 0\nde: 3\n", 0, 0),
        ("Query currently inaccessible\n", None, None),
    ],
)
def test_memory_errors(tmp_path: Path, text: str, corrected: int | None, uncorrected: int | None) -> None:
    write(tmp_path, "ras/umc_err_count", text.encode())
    write(tmp_path, "ras/gfx_err_count", b"ue: 99\nce: 99\n")
    assert read(tmp_path) == DeviceSample(ecc_corrected_errors=corrected, ecc_uncorrected_errors=uncorrected)


def test_memory_errors_in_another_format_are_named(tmp_path: Path) -> None:
    write(tmp_path, "ras/umc_err_count", b"uncorrectable 3\n")
    write(tmp_path, "gpu_busy_percent", b"37\n")
    with pytest.raises(IncompleteError, match="memory errors are not known: ras/umc_err_count") as raised:
        read(tmp_path)
    assert raised.value.sample == DeviceSample(gpu_utilization_ratio=0.37)


def test_doctor_names_a_gpu_whose_table_is_not_known(tmp_path: Path) -> None:
    host = dra_simulate.build("mi210", tmp_path / "host")
    rig = Rig(host, tmp_path)
    try:
        name = next(device.name for device in rig.inventory.devices if device.family == "gpu")
        address = next(device.pci_address for device in rig.inventory.devices if device.name == name)
        (host.sysfs / "bus/pci/devices" / address / "gpu_metrics").write_bytes(b"")
        rig.now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        rig.sample(after_s=0)
        sample = rig.sampler.snapshot().samples[name]
        assert (sample.temperature_celsius, sample.ecc_uncorrected_errors) == (40.0, 0)
        findings = list(check_telemetry(CheckContext(host=host, state_dir=tmp_path)))
    finally:
        rig.close()
    assert [finding.where for finding in findings] == [name]
    assert "gpu_metrics has no header" in findings[0].message
