"""Further NVIDIA products with MIG, as `nvidia-smi mig -lgip` lists their profiles.

Memory in GiB of 1g, 1g with double memory and 2g, 3g and 4g, and 7g; multiprocessors of 1g, double, 2g, 3g, 4g, 7g:

| product | memory | multiprocessors | source |
|---|---|---|---|
| A30 | 5.81 (1g), 11.69 (2g), 23.44 (4g) | 14, 28, 56 | MIG user guide; memory not verified |
| A100 40GB | 4.75, 9.75, 19.62, 39.50 | 14, 14, 28, 42, 56, 98 | MIG user guide |
| H100 NVL | 10.75, 21.62, 46.38, 93.12 | as H100 SXM | mig-parted#101 |
| H100 PCIe | as H100 SXM (not verified) | 14 and 26 (not verified), 30, 46, 62, 114 | -lgip of H100 PCIe |
| GH200 144GB | 17.50, 35.25; 71.00, 142.50 not verified | 16, 26, 32, 60, 64, 132 | mig-parted#139 |
| B200 | 22.00, 44.25; 89.00, 178.00 not verified | 18, 30, 36; 70, 72, 148 not verified | mig-parted#166 |
| B200, later driver | 20.50 for 1g, the rest as before | the same | mig-parted#187 |
| GB200 | 20.00 as 1g.24gb, 45.50; others and the total not verified | 18, 32, 38 | gpu-operator#1303 |
| GB200, later driver | 22.00 as 1g.23gb, 45.50; others not verified | the same | mig-parted#227 |
| RTX PRO 6000 Blackwell | 23.62 (1g), 47.38 (2g), 95.00 (4g) | 46, 94, 188 | -lgip of the product, MIG user guide |

Placements and instance counts follow the MIG user guide ("Supported MIG Profiles"). PCI ids: mig-parted,
deployments/systemd/config-default.yaml. Firmware versions and part numbers are made up.
"""

from __future__ import annotations

from dataclasses import replace

from dra_simulate.models import (
    AMPERE,
    BLACKWELL,
    GIB,
    H100_SXM,
    MIB,
    NVIDIA_BRAND,
    GpuModel,
    MigProfile,
    seven_slices,
)


def _named(memory: tuple[int, ...], names: str) -> tuple[MigProfile, ...]:
    """Return the profiles of the H100 SXM with other names and memory."""
    return tuple(
        replace(profile, name=f"MIG {name}", memory_mib=mib)
        for profile, name, mib in zip(H100_SXM.mig, names.split(), memory, strict=True)
    )


def _profile(
    number: int,
    id_: int,
    name: str,
    size: int,
    mib: int,
    multiprocessors: int,
    media: tuple[int, int, int, int],
    max_instances: int,
) -> MigProfile:
    """Return a profile of a GPU with four compute and four memory slices; `media`: decoders, encoders, JPEG, OFA."""
    decoders, encoders, jpeg, ofa = media
    placements = tuple((start, size) for start in range(0, 4, size))
    return MigProfile(
        number,
        id_,
        f"MIG {name}",
        size,
        mib,
        multiprocessors,
        size,
        decoders,
        jpeg,
        ofa,
        placements,
        max_instances,
        encoders,
    )


A30 = GpuModel(
    name="NVIDIA A30",
    brand=NVIDIA_BRAND,
    architecture=AMPERE,
    compute_capability=(8, 0),
    memory_bytes=24576 * MIB,
    reserved_bytes=428 * MIB,
    bar1_bytes=32 * GIB,
    multiprocessors=56,
    cores=3584,
    copy_engines=4,
    decoders=4,
    encoders=0,
    power_limit_watts=165,
    vbios="92.00.A0.00.0A",
    part_number="900-21001-0040-000",
    nvlinks=4,
    mig=(
        _profile(0x0, 14, "1g.6gb", 1, 5952, 14, (0, 0, 0, 0), 4),
        _profile(0x7, 21, "1g.6gb+me", 1, 5952, 14, (1, 0, 1, 1), 1),
        _profile(0x1, 5, "2g.12gb", 2, 11968, 28, (2, 0, 0, 0), 2),
        _profile(0x8, 6, "2g.12gb+me", 2, 11968, 28, (2, 0, 1, 1), 1),
        _profile(0x3, 0, "4g.24gb", 4, 24000, 56, (4, 0, 1, 1), 1),
    ),
)

A100_40GB = GpuModel(
    name="NVIDIA A100-SXM4-40GB",
    brand=NVIDIA_BRAND,
    architecture=AMPERE,
    compute_capability=(8, 0),
    memory_bytes=40960 * MIB,
    reserved_bytes=571 * MIB,
    bar1_bytes=64 * GIB,
    multiprocessors=108,
    cores=6912,
    copy_engines=7,
    decoders=5,
    encoders=0,
    power_limit_watts=400,
    vbios="92.00.19.00.10",
    part_number="692-2G506-0200-000",
    nvlinks=12,
    mig=seven_slices(
        ("1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
        (4864, 4864, 9984, 9984, 20096, 20096, 40448),
        (14, 14, 14, 28, 42, 56, 98),
        decoders=(0, 1, 1, 1, 2, 2, 5),
        jpeg=(0, 1, 0, 0, 0, 0, 1),
        copies=7,
    ),
)

H100_NVL = replace(
    H100_SXM,
    name="NVIDIA H100 NVL",
    memory_bytes=95830 * MIB,
    power_limit_watts=400,
    nvlinks=12,
    mig=_named(
        (11008, 11008, 22144, 22144, 47488, 47488, 95360),
        "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb",
    ),
)

H100_PCIE = replace(
    H100_SXM,
    name="NVIDIA H100 PCIe",
    multiprocessors=114,
    cores=14592,
    power_limit_watts=350,
    mig=tuple(
        replace(profile, multiprocessors=count)
        for profile, count in zip(H100_SXM.mig, (14, 14, 26, 30, 46, 62, 114), strict=True)
    ),
)

GH200_144GB = replace(
    H100_SXM,
    name="NVIDIA GH200 144G HBM3e",
    memory_bytes=146831 * MIB,
    power_limit_watts=900,
    mig=_named(
        (17920, 17920, 36096, 36096, 72704, 72704, 145920),
        "1g.18gb 1g.18gb+me 1g.36gb 2g.36gb 3g.72gb 4g.72gb 7g.144gb",
    ),
)

B200 = GpuModel(
    name="NVIDIA B200",
    brand=NVIDIA_BRAND,
    architecture=BLACKWELL,
    compute_capability=(10, 0),
    memory_bytes=183359 * MIB,
    reserved_bytes=720 * MIB,
    bar1_bytes=256 * GIB,
    multiprocessors=148,
    cores=18944,
    copy_engines=16,
    decoders=7,
    encoders=0,
    power_limit_watts=1000,
    vbios="97.00.82.00.01",
    part_number="692-2G525-0220-000",
    nvlinks=18,
    mig=seven_slices(
        ("1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),
        (22528, 22528, 45312, 45312, 91136, 91136, 182272),
        (18, 18, 30, 36, 70, 72, 148),
        decoders=(1, 1, 1, 2, 3, 4, 7),
        jpeg=(1, 1, 1, 2, 3, 4, 7),
        copies=16,
        copies_per_slice=2,
    ),
)


def _later(model: GpuModel, total_mib: int, names: str, memory: tuple[int, ...]) -> GpuModel:
    """Return the product as a later driver describes it: total memory, and names and memory of the profiles."""
    profiles = zip(model.mig, names.split(), memory, strict=True)
    mig = tuple(replace(profile, name=f"MIG {name}", memory_mib=mib) for profile, name, mib in profiles)
    return replace(model, memory_bytes=total_mib * MIB, mig=mig)


B200_LATER_DRIVER = _later(
    B200,
    183359,
    "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
    (20992, 20992, 45312, 45312, 91136, 91136, 182272),
)

GB200 = replace(
    B200,
    name="NVIDIA GB200",
    memory_bytes=192960 * MIB,
    multiprocessors=152,
    cores=19456,
    power_limit_watts=1200,
    mig=seven_slices(
        ("1g.24gb", "1g.24gb+me", "1g.47gb", "2g.47gb", "3g.95gb", "4g.95gb", "7g.189gb"),
        (20480, 20480, 46592, 46592, 94208, 94208, 188416),
        (18, 18, 32, 38, 72, 74, 152),
        decoders=(1, 1, 1, 2, 3, 4, 7),
        jpeg=(1, 1, 1, 2, 3, 4, 7),
        copies=16,
        copies_per_slice=2,
    ),
)
GB200_LATER_DRIVER = _later(
    GB200,
    189471,
    "1g.23gb 1g.23gb+me 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb",
    (22528, 22528, 46592, 46592, 93184, 93184, 186880),
)

RTX_PRO_6000 = GpuModel(
    name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
    brand=NVIDIA_BRAND,
    architecture=BLACKWELL,
    compute_capability=(12, 0),
    memory_bytes=97887 * MIB,
    reserved_bytes=638 * MIB,
    bar1_bytes=128 * GIB,
    multiprocessors=188,
    cores=24064,
    copy_engines=4,
    decoders=4,
    encoders=4,
    power_limit_watts=600,
    vbios="98.02.6A.00.03",
    part_number="900-2G153-0000-000",
    mig=(
        _profile(0x00, 14, "1g.24gb", 1, 24192, 46, (1, 1, 1, 0), 4),
        _profile(0x07, 21, "1g.24gb+me", 1, 24192, 46, (1, 1, 1, 1), 1),
        _profile(0x0A, 47, "1g.24gb+gfx", 1, 24192, 46, (1, 1, 1, 0), 4),
        _profile(0x0F, 65, "1g.24gb+me.all", 1, 24192, 46, (4, 4, 4, 1), 1),
        _profile(0x0D, 67, "1g.24gb-me", 1, 24192, 46, (0, 0, 0, 0), 4),
        _profile(0x01, 5, "2g.48gb", 2, 48512, 94, (2, 2, 2, 0), 2),
        _profile(0x0B, 35, "2g.48gb+gfx", 2, 48512, 94, (2, 2, 2, 0), 2),
        _profile(0x10, 64, "2g.48gb+me.all", 2, 48512, 94, (4, 4, 4, 1), 1),
        _profile(0x0E, 66, "2g.48gb-me", 2, 48512, 94, (0, 0, 0, 0), 2),
        _profile(0x03, 0, "4g.96gb", 4, 97280, 188, (4, 4, 4, 1), 1),
        _profile(0x0C, 32, "4g.96gb+gfx", 4, 97280, 188, (4, 4, 4, 1), 1),
    ),
)
