"""NVIDIA products as NVML describes them: memory, multiprocessors, engines, MIG profiles.

Figures are from NVIDIA's data sheets and the MIG user guide's `nvidia-smi mig -lgip` listings.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30

KEPLER, MAXWELL, PASCAL, VOLTA, TURING, AMPERE, ADA, HOPPER, BLACKWELL = range(2, 11)
"""NVML's numbers for architectures."""

TESLA_BRAND, NVIDIA_BRAND = 2, 14
NVIDIA_BRAND_SINCE = 525
"""The first driver that reports the brand "NVIDIA" for data center GPUs: a T4 has it with 530.30.02 and 535.183.01, and
an A100 "Tesla" with 450.203.03 (NVIDIA/k8s-device-plugin#343). That it changed with 525 is not documented."""


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A GPU instance profile: NVML's profile constant, nvidia-smi's id, and the resources of an instance.

    Placements are (first memory slice, number of memory slices).
    """

    profile: int
    id: int
    name: str
    slices: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    jpeg: int
    ofa: int
    placements: tuple[tuple[int, int], ...]
    max_instances: int
    """The maximum number of instances."""
    encoders: int = 0


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A product."""

    name: str
    brand: int
    architecture: int
    compute_capability: tuple[int, int]
    memory_bytes: int
    """0: the GPU uses the memory of the CPU, and NVML reports none."""
    reserved_bytes: int
    bar1_bytes: int
    """0: NVML reports none."""
    multiprocessors: int
    cores: int
    copy_engines: int
    decoders: int
    encoders: int
    power_limit_watts: int
    vbios: str
    part_number: str
    nvlinks: int = 0
    ecc: bool = True
    old_brand: int | None = None
    """The brand that drivers before NVIDIA_BRAND_SINCE report, if it is another one."""
    mig: tuple[MigProfile, ...] = ()


def seven_slices(
    names: tuple[str, ...],
    memory_mib: tuple[int, ...],
    multiprocessors: tuple[int, ...],
    decoders: tuple[int, ...],
    jpeg: tuple[int, ...],
    copies: int = 8,
    copies_per_slice: int = 1,
) -> tuple[MigProfile, ...]:
    """Profiles of a GPU with seven compute and eight memory slices: 1g, 1g+me, 1g double memory, 2g, 3g, 4g, 7g.

    `copies`: copy engines of 7g; `copies_per_slice`: copy engines of the others per compute slice.
    """
    ones = tuple((slice_, 1) for slice_ in range(7))
    pairs = ((0, 2), (2, 2), (4, 2))
    rows = (
        (0x0, 19, 1, 1, ones, 7, False),
        (0x7, 20, 1, 1, ones, 1, True),
        (0x9, 15, 1, 1, (*pairs, (6, 2)), 4, False),
        (0x1, 14, 2, 2, pairs, 3, False),
        (0x2, 9, 3, 3, ((0, 4), (4, 4)), 2, False),
        (0x3, 5, 4, 4, ((0, 4),), 1, False),
        (0x4, 0, 7, copies, ((0, 8),), 1, True),
    )
    return tuple(
        MigProfile(
            profile,
            id_,
            f"MIG {name}",
            slices,
            memory,
            sm_count,
            engines if slices == 7 else engines * copies_per_slice,
            decode,
            jpegs,
            int(media),
            places,
            max_instances,
        )
        for (
            profile,
            id_,
            slices,
            engines,
            places,
            max_instances,
            media,
        ), name, memory, sm_count, decode, jpegs in zip(
            rows, names, memory_mib, multiprocessors, decoders, jpeg, strict=True
        )
    )


H100_SXM = GpuModel(
    name="NVIDIA H100 80GB HBM3",
    brand=NVIDIA_BRAND,
    architecture=HOPPER,
    compute_capability=(9, 0),
    memory_bytes=81559 * MIB,
    reserved_bytes=551 * MIB,
    bar1_bytes=128 * GIB,
    multiprocessors=132,
    cores=16896,
    copy_engines=8,
    decoders=7,
    encoders=0,
    power_limit_watts=700,
    vbios="96.00.89.00.01",
    part_number="692-2G520-0200-000",
    nvlinks=18,
    mig=seven_slices(
        ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
        # `nvidia-smi mig -lgip` shows 9.75, 19.62, 39.50 and 79.25 GiB.
        (9984, 9984, 20096, 20096, 40448, 40448, 81152),
        (16, 16, 26, 32, 60, 64, 132),
        decoders=(1, 1, 1, 2, 3, 4, 7),
        jpeg=(1, 1, 1, 2, 3, 4, 7),
    ),
)

H200_SXM = GpuModel(
    name="NVIDIA H200",
    brand=NVIDIA_BRAND,
    architecture=HOPPER,
    compute_capability=(9, 0),
    memory_bytes=143771 * MIB,
    reserved_bytes=615 * MIB,
    bar1_bytes=256 * GIB,
    multiprocessors=132,
    cores=16896,
    copy_engines=8,
    decoders=7,
    encoders=0,
    power_limit_watts=700,
    vbios="96.00.A0.00.01",
    part_number="692-2G520-0280-000",
    nvlinks=18,
    mig=seven_slices(
        ("1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
        # mig-parted#120: 16.00, 32.25, 69.50 and 139.50 GiB.
        (16384, 16384, 33024, 33024, 71168, 71168, 142848),
        (16, 16, 26, 32, 60, 64, 132),
        decoders=(1, 1, 1, 2, 3, 4, 7),
        jpeg=(1, 1, 1, 2, 3, 4, 7),
    ),
)

A100_PCIE = GpuModel(
    name="NVIDIA A100 80GB PCIe",
    brand=NVIDIA_BRAND,
    old_brand=TESLA_BRAND,
    architecture=AMPERE,
    compute_capability=(8, 0),
    memory_bytes=81920 * MIB,
    reserved_bytes=583 * MIB,
    bar1_bytes=128 * GIB,
    multiprocessors=108,
    cores=6912,
    copy_engines=7,
    decoders=5,
    encoders=0,
    power_limit_watts=300,
    vbios="92.00.A0.00.05",
    part_number="900-21001-0020-000",
    nvlinks=12,
    mig=seven_slices(
        ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
        (9728, 9728, 19968, 19968, 40192, 40192, 80384),
        (14, 14, 14, 28, 42, 56, 98),
        decoders=(0, 1, 1, 1, 2, 2, 5),
        jpeg=(0, 1, 0, 0, 0, 0, 1),
        copies=7,
    ),
)

L40S = GpuModel(
    name="NVIDIA L40S",
    brand=NVIDIA_BRAND,
    architecture=ADA,
    compute_capability=(8, 9),
    memory_bytes=46068 * MIB,
    reserved_bytes=598 * MIB,
    bar1_bytes=64 * GIB,
    multiprocessors=142,
    cores=18176,
    copy_engines=2,
    decoders=3,
    encoders=3,
    power_limit_watts=350,
    vbios="95.02.66.00.02",
    part_number="900-2G133-0080-000",
)

T4 = GpuModel(
    name="Tesla T4",
    brand=NVIDIA_BRAND,
    old_brand=TESLA_BRAND,
    architecture=TURING,
    compute_capability=(7, 5),
    memory_bytes=15360 * MIB,
    reserved_bytes=435 * MIB,
    bar1_bytes=256 * MIB,
    multiprocessors=40,
    cores=2560,
    copy_engines=3,
    decoders=2,
    encoders=1,
    power_limit_watts=70,
    vbios="90.04.96.00.02",
    part_number="900-2G183-0000-001",
)

GB10 = GpuModel(
    name="NVIDIA GB10",
    brand=NVIDIA_BRAND,
    architecture=BLACKWELL,
    compute_capability=(12, 1),
    memory_bytes=0,
    reserved_bytes=0,
    bar1_bytes=0,
    multiprocessors=48,
    cores=6144,
    copy_engines=2,
    decoders=1,
    encoders=1,
    power_limit_watts=140,
    vbios="9A.0B.0C.00.00",
    part_number="",
    ecc=False,
)
"""It uses the memory of the CPU, and NVML reports none. Engines, brand and VBIOS are assumed."""

V100_SXM3 = GpuModel(
    name="Tesla V100-SXM3-32GB",
    brand=NVIDIA_BRAND,
    architecture=VOLTA,
    compute_capability=(7, 0),
    memory_bytes=32768 * MIB,
    reserved_bytes=258 * MIB,
    bar1_bytes=32 * GIB,
    multiprocessors=80,
    cores=5120,
    copy_engines=6,
    decoders=1,
    encoders=3,
    power_limit_watts=350,
    vbios="88.00.6B.00.01",
    part_number="900-2G504-0000-000",
    nvlinks=6,
)
