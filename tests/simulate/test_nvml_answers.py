"""What the simulated NVML responds, through the ordinary pynvml, against the machine's description and NVML's rules."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_simulate import build, build_machine, inject
from dra_simulate.machine import HostBridge, Machine, NumaNode, NvidiaDriver
from dra_simulate.models import A100_PCIE, H100_SXM, T4, GpuModel
from dra_simulate.nvml import read
from dra_simulate.parts.nvidia import gpu
from dra_simulate.profiles import load_profile
from dra_simulate.roles.nvidia import NvidiaGpu

Program = Callable[..., Any]
GIB = 1 << 30
UNINITIALIZED, INVALID, NOT_SUPPORTED, NOT_FOUND, TOO_SMALL, NO_DRIVER = (
    f"error {code}" for code in (1, 2, 3, 6, 7, 9)
)
WRONG_VERSION = "error 25"


def test_system_and_enumeration(standing_dgx: Path, program: Program) -> None:
    answer = program(
        standing_dgx,
        """
handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
report(dict(
    driver=nvml.nvmlSystemGetDriverVersion(), library=nvml.nvmlSystemGetNVMLVersion(),
    cuda=nvml.nvmlSystemGetCudaDriverVersion(), cuda2=nvml.nvmlSystemGetCudaDriverVersion_v2(),
    uuids=[nvml.nvmlDeviceGetUUID(h) for h in handles], minors=[nvml.nvmlDeviceGetMinorNumber(h) for h in handles],
    buses=[nvml.nvmlDeviceGetPciInfo(h).busId for h in handles],
    indices=[nvml.nvmlDeviceGetIndex(h) for h in handles],
))""",
    )
    described = list(load_profile("dgx-h100").with_role(NvidiaGpu))
    assert answer == {
        "driver": "570.124.06",
        "library": "12.570.124.06",
        "cuda": 12080,
        "cuda2": 12080,
        "uuids": [role.uuid for _, role in described],
        "minors": list(range(8)),
        "buses": [f"0000{function.address.upper()}" for function, _ in described],
        "indices": list(range(8)),
    }


def test_identity_of_a_gpu(standing_dgx: Path, program: Program) -> None:
    answer = program(
        standing_dgx,
        """
h = nvml.nvmlDeviceGetHandleByIndex(1)
pci, extended = nvml.nvmlDeviceGetPciInfo_v3(h), nvml.nvmlPciInfoExt_v1_t()
extended.version = nvml.nvmlPciInfoExt_v1
nvml.nvmlDeviceGetPciInfoExt(h, ctypes.byref(extended))
report(dict(
    name=nvml.nvmlDeviceGetName(h), brand=nvml.nvmlDeviceGetBrand(h), architecture=nvml.nvmlDeviceGetArchitecture(h),
    capability=nvml.nvmlDeviceGetCudaComputeCapability(h), cores=nvml.nvmlDeviceGetNumGpuCores(h),
    serial=nvml.nvmlDeviceGetSerial(h), vbios=nvml.nvmlDeviceGetVbiosVersion(h),
    part=nvml.nvmlDeviceGetBoardPartNumber(h), board=nvml.nvmlDeviceGetBoardId(h),
    pci=[pci.busId, pci.busIdLegacy, pci.domain, pci.bus, pci.device, pci.pciDeviceId, pci.pciSubSystemId],
    extended=[extended.busId, extended.bus, extended.baseClass, extended.subClass],
    link=[nvml.nvmlDeviceGetCurrPcieLinkGeneration(h), nvml.nvmlDeviceGetCurrPcieLinkWidth(h),
          nvml.nvmlDeviceGetMaxPcieLinkGeneration(h), nvml.nvmlDeviceGetMaxPcieLinkWidth(h)],
    again=ctypes.cast(nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(h)), ctypes.c_void_p).value
        == ctypes.cast(h, ctypes.c_void_p).value
        == ctypes.cast(nvml.nvmlDeviceGetHandleByPciBusId(b"00000000:43:00.0"), ctypes.c_void_p).value
        == ctypes.cast(nvml.nvmlDeviceGetHandleByPciBusId(b"0000:43:00.0"), ctypes.c_void_p).value,
))""",
    )
    serial = read(standing_dgx / "lib").devices[1].serial
    assert answer == {
        "name": "NVIDIA H100 80GB HBM3",
        "brand": 14,
        "architecture": 9,
        "capability": [9, 0],
        "cores": 132 * 128,
        "serial": serial,
        "vbios": "96.00.89.00.01",
        "part": "692-2G520-0200-000",
        "board": 0x4300,
        "pci": ["00000000:43:00.0", "0000:43:00.0", 0, 0x43, 0, 0x233010DE, 0x16C110DE],
        "extended": ["00000000:43:00.0", 0x43, 3, 2],
        "link": [5, 16, 5, 16],
        "again": True,
    }


def test_memory_and_health(standing_dgx: Path, program: Program) -> None:
    answer = program(
        standing_dgx,
        """
h = nvml.nvmlDeviceGetHandleByIndex(0)
one, two = nvml.nvmlDeviceGetMemoryInfo(h), nvml.nvmlDeviceGetMemoryInfo(h, nvml.nvmlMemory_v2)
bar = nvml.nvmlDeviceGetBAR1MemoryInfo(h)
report(dict(
    sums=[one.total == one.free + one.used, two.total == two.free + two.used + two.reserved, one.total == two.total],
    total=one.total, used=[one.used - two.reserved, two.used], bar=bar.bar1Total,
    processes=nvml.nvmlDeviceGetComputeRunningProcesses(h), graphics=nvml.nvmlDeviceGetGraphicsRunningProcesses(h),
    temperature=[nvml.nvmlDeviceGetTemperature(h, 0), nvml.nvmlDeviceGetTemperatureV(h, 0)],
    power=nvml.nvmlDeviceGetPowerUsage(h), limit=nvml.nvmlDeviceGetEnforcedPowerLimit(h),
    load=nvml.nvmlDeviceGetUtilizationRates(h).gpu, ecc=nvml.nvmlDeviceGetEccMode(h),
    errors=[nvml.nvmlDeviceGetTotalEccErrors(h, 1, 0), nvml.nvmlDeviceGetMemoryErrorCounter(h, 1, 0, 2)],
    rows=nvml.nvmlDeviceGetRemappedRows(h), persistence=nvml.nvmlDeviceGetPersistenceMode(h),
    mode=nvml.nvmlDeviceGetComputeMode(h),
))""",
    )
    assert answer == {
        "sums": [True, True, True],
        "total": 81559 << 20,
        "used": [0, 0],
        "bar": 128 * GIB,
        "processes": [],
        "graphics": [],
        "temperature": [34, 34],
        "power": 71000,
        "limit": 700_000,
        "load": 0,
        "ecc": [1, 1],
        "errors": [0, 0],
        "rows": [0, 0, 0, 0],
        "persistence": 1,
        "mode": 0,
    }


def test_location_and_links(standing_dgx: Path, program: Program) -> None:
    answer = program(
        standing_dgx,
        """
a, b, far = (nvml.nvmlDeviceGetHandleByIndex(i) for i in (0, 1, 7))
def fabric(kind):
    info = kind()
    nvml.nvmlDeviceGetGpuFabricInfoV(a, ctypes.byref(info))
    return [info.state, info.status, info.cliqueId, bytes(info.clusterUuid).hex()]
plain = nvml.c_nvmlGpuFabricInfo_t()
nvml.nvmlDeviceGetGpuFabricInfo(a, ctypes.byref(plain))
report(dict(
    common=[nvml.nvmlDeviceGetTopologyCommonAncestor(a, other) for other in (a, b, far)],
    cpus=[list(nvml.nvmlDeviceGetCpuAffinity(a, 4)), list(nvml.nvmlDeviceGetCpuAffinityWithinScope(far, 4, 0))],
    memory=[list(nvml.nvmlDeviceGetMemoryAffinity(h, 1, 0)) for h in (a, far)],
    node=outcome(nvml.nvmlDeviceGetNumaNodeId, a), addressing=nvml.nvmlDeviceGetAddressingMode(a),
    near=len(nvml.nvmlDeviceGetTopologyNearestGpus(a, 40)),
    active=sum(nvml.nvmlDeviceGetNvLinkState(a, link) for link in range(18)),
    beyond=outcome(nvml.nvmlDeviceGetNvLinkState, a, 18),
    remote=[nvml.nvmlDeviceGetNvLinkRemotePciInfo(a, link).busId for link in (0, 17)],
    kind=nvml.nvmlDeviceGetNvLinkRemoteDeviceType(a, 0) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH,
    p2p=nvml.nvmlDeviceGetP2PStatus(a, far, nvml.NVML_P2P_CAPS_INDEX_NVLINK),
    fabric=[fabric(nvml.c_nvmlGpuFabricInfo_v2_t), outcome(fabric, nvml.c_nvmlGpuFabricInfo_v3_t), plain.state],
))""",
    )
    completed = [3, 0, 0, "0" * 32]
    low, high = (1 << 56) - 1, ((1 << 56) - 1) << 56

    def words(low_half: int) -> list[int]:
        every = low_half | low_half << 112
        return [every >> 64 * word & (1 << 64) - 1 for word in range(4)]

    assert answer == {
        "common": [0, 40, 50],
        "cpus": [words(low), words(high)],
        "memory": [[1], [2]],
        "node": NOT_SUPPORTED,
        "addressing": 1,
        "near": 3,
        "active": 18,
        "beyond": INVALID,
        "remote": ["00000000:07:00.0", "00000000:0A:00.0"],
        "kind": True,
        "p2p": 0,
        "fabric": [completed, WRONG_VERSION, 3],
    }


def test_mig_profiles_and_placements(standing_dgx: Path, program: Program) -> None:
    answer = program(
        standing_dgx,
        """
h = nvml.nvmlDeviceGetHandleByIndex(0)
def places(identifier):
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(h, identifier, None, ctypes.byref(count))
    room = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(h, identifier, room, ctypes.byref(count))
    small = ctypes.c_uint(count.value - 1)
    less = outcome(nvml.nvmlDeviceGetGpuInstancePossiblePlacements, h, identifier, room, ctypes.byref(small))
    return [[place.start, place.size] for place in room], less
def profile(number, version):
    info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(h, number, version)
    return [info.id, info.sliceCount, info.instanceCount, info.multiprocessorCount, info.memorySizeMB]
offered = [n for n in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
           if not isinstance(outcome(nvml.nvmlDeviceGetGpuInstanceProfileInfo, h, n), str)]
report(dict(
    mode=nvml.nvmlDeviceGetMigMode(h), most=nvml.nvmlDeviceGetMaxMigDeviceCount(h), offered=offered,
    device=outcome(nvml.nvmlDeviceGetMigDeviceHandleByIndex, h, 0),
    is_mig=nvml.nvmlDeviceIsMigDeviceHandle(h).value, whole=outcome(nvml.nvmlDeviceGetAttributes, h),
    name=nvml.nvmlDeviceGetGpuInstanceProfileInfo(h, 9).name, three=[profile(2, 1), profile(2, 2)],
    places={identifier: places(identifier) for identifier in (19, 15, 14, 9, 5, 0)},
    unknown=[outcome(nvml.nvmlDeviceGetGpuInstanceProfileInfo, h, n) for n in (5, 0x12)],
))""",
    )
    assert answer == {
        "mode": [0, 0],
        "most": 0,
        "offered": [0, 1, 2, 3, 4, 7, 9],
        "device": NOT_FOUND,
        "is_mig": 0,
        "whole": NOT_SUPPORTED,
        "name": "MIG 1g.20gb",
        "three": [[9, 3, 2, 60, 40448]] * 2,
        "places": {
            "19": [[[start, 1] for start in range(7)], TOO_SMALL],
            "15": [[[0, 2], [2, 2], [4, 2], [6, 2]], TOO_SMALL],
            "14": [[[0, 2], [2, 2], [4, 2]], TOO_SMALL],
            "9": [[[0, 4], [4, 4]], TOO_SMALL],
            "5": [[[0, 4]], TOO_SMALL],
            "0": [[[0, 8]], TOO_SMALL],
        },
        "unknown": [NOT_SUPPORTED, INVALID],
    }


def test_errors_are_those_of_nvml(standing_dgx: Path, program: Program) -> None:
    answer = program(
        standing_dgx,
        """
before = outcome(nvml.nvmlDeviceGetCount)
early = outcome(nvml.nvmlShutdown)
nvml.nvmlInit(); nvml.nvmlInit(); nvml.nvmlShutdown()
h = nvml.nvmlDeviceGetHandleByIndex(0)
small = ctypes.create_string_buffer(8)
wrong = nvml.c_nvmlMemory_v2_t(); wrong.version = 7
library = nvml.nvmlLib
result = dict(
    before=before, early=early, index=outcome(nvml.nvmlDeviceGetHandleByIndex, 8),
    uuid=outcome(nvml.nvmlDeviceGetHandleByUUID, b"GPU-nobody"),
    bus=outcome(nvml.nvmlDeviceGetHandleByPciBusId, b"0000:01:00.0"),
    nonsense=outcome(nvml.nvmlDeviceGetHandleByPciBusId, b"nonsense"),
    handle=outcome(nvml.nvmlDeviceGetName, ctypes.cast(ctypes.c_void_p(12345), nvml.c_nvmlDevice_t)),
    null=library.nvmlDeviceGetName(h, None, 96), nowhere=library.nvmlDeviceGetCount_v2(None),
    short=library.nvmlDeviceGetName(h, small, 8), version=library.nvmlDeviceGetMemoryInfo_v2(h, ctypes.byref(wrong)),
    absent=outcome(nvml.nvmlDeviceGetGspFirmwareVersion, h),
    text=[nvml.nvmlErrorString(15), nvml.nvmlErrorString(4711)],
)
nvml.nvmlShutdown()
report({**result, "after": outcome(nvml.nvmlDeviceGetName, h)})""",
        initialise=False,
    )
    assert answer == {
        "before": UNINITIALIZED,
        "early": UNINITIALIZED,
        "index": INVALID,
        "uuid": NOT_FOUND,
        "bus": NOT_FOUND,
        "nonsense": INVALID,
        "handle": INVALID,
        "null": 2,
        "nowhere": 2,
        "short": 7,
        "version": 25,
        "absent": "error 13",
        "text": ["GPU is lost", "Unknown Error"],
        "after": UNINITIALIZED,
    }


def test_an_older_gpu_has_less(tmp_path: Path, program: Program) -> None:
    machine = Machine(
        "old",
        "a T4 whose firmware reports no node",
        (NumaNode("0-3", 8 * GIB, (10,)),),
        (HostBridge("pci0000:00", -1, (gpu("0000:00:1e.0", T4, 0, machine="old"),)),),
        nvidia=NvidiaDriver("535.183.01", 12020),
    )
    build_machine(machine, tmp_path / "host")
    answer = program(
        tmp_path / "host",
        """
h = nvml.nvmlDeviceGetHandleByIndex(0)
report([outcome(f, h) for f in (nvml.nvmlDeviceGetMigMode, nvml.nvmlDeviceGetRemappedRows)]
     + [outcome(nvml.nvmlDeviceGetNvLinkState, h, 0), outcome(nvml.nvmlDeviceGetMemoryAffinity, h, 1, 0),
        list(nvml.nvmlDeviceGetCpuAffinity(h, 1)), nvml.nvmlDeviceGetBrand(h),
        outcome(nvml.nvmlDeviceGetGpuFabricInfoV, h, ctypes.byref(nvml.c_nvmlGpuFabricInfoV_t()))])""",
    )
    assert answer == [NOT_SUPPORTED] * 4 + [[0xF], 14, NOT_SUPPORTED]


def test_a_named_fabric_and_its_clique(tmp_path: Path, program: Program) -> None:
    cluster = "0a1b2c3d-0000-4000-8000-00000000beef"
    machine = Machine(
        "rack",
        "a GPU of a multi-host fabric",
        (NumaNode("0-3", 8 * GIB, (10,)),),
        (HostBridge("pci0000:00", 0, (gpu("0000:01:00.0", H100_SXM, 0, machine="rack", fabric=(cluster, 32766)),)),),
        nvidia=NvidiaDriver("570.124.06", 12080),
    )
    build_machine(machine, tmp_path / "host")
    source = """
info = nvml.c_nvmlGpuFabricInfoV_t()
nvml.nvmlDeviceGetGpuFabricInfoV(nvml.nvmlDeviceGetHandleByIndex(0), ctypes.byref(info))
report([bytes(info.clusterUuid).hex(), info.cliqueId, info.state])"""
    assert program(tmp_path / "host", source) == [cluster.replace("-", ""), 32766, 3]


def test_version_3_of_the_fabric_has_a_summary(tmp_path: Path, program: Program) -> None:
    root = build("hgx-h200", tmp_path / "hgx").sysfs.parent
    source = """
def fabric(kind):
    info = kind()
    nvml.nvmlDeviceGetGpuFabricInfoV(nvml.nvmlDeviceGetHandleByIndex(2), ctypes.byref(info))
    return [info.state, info.status, info.healthMask, getattr(info, "healthSummary", None)]
report([fabric(nvml.c_nvmlGpuFabricInfo_v2_t), fabric(nvml.c_nvmlGpuFabricInfo_v3_t)])"""
    assert program(root, source) == [[3, 0, 2, None], [3, 0, 2, 1]]
    inject.fabric(root, "2", "completed", failures=("bandwidth", "route-unhealthy"))
    assert program(root, source) == [[3, 0, 0x11, None], [3, 0, 0x11, 2]]
    inject.fabric(root, "2", "in-progress")
    assert [row[0] for row in program(root, source)] == [2, 2]


@pytest.mark.parametrize(
    ("profile", "cliques"),
    [
        # Pointers only on Hopper, logical endpoints too from Blackwell on (NVML API reference).
        ("hgx-h200", [0, 1]),
        ("gb200-nvl", [0, 1, 2, 3]),
    ],
)
def test_version_4_of_the_fabric_has_a_clique_of_each_type(
    tmp_path: Path, program: Program, profile: str, cliques: list[int]
) -> None:
    machine = load_profile(profile)
    source = """
h, old, new = nvml.nvmlDeviceGetHandleByIndex(0), nvml.c_nvmlGpuFabricInfo_v3_t(), nvml.c_nvmlGpuFabricInfo_v4_t()
nvml.nvmlDeviceGetGpuFabricInfoV(h, ctypes.byref(old))
if outcome(nvml.nvmlDeviceGetGpuFabricInfo_v4, h, ctypes.byref(new)) == "error 13":
    report("missing")
else:
    same = [[i.state, i.status, i.healthMask, i.healthSummary, bytes(i.clusterUuid).hex()] for i in (old, new)]
    report([same[0] == same[1], [clique.type for clique in new.cliques[:new.numCliques]],
          old.cliqueId == new.cliques[0].id, new.state, [ctypes.sizeof(new), new.cliques[5].id]])"""
    for version in ("615.71.05", "580.126.16"):
        build_machine(replace(machine, nvidia=NvidiaDriver(version, 13040)), tmp_path / version)
    assert program(tmp_path / "580.126.16", source) == "missing"
    assert program(tmp_path / "615.71.05", source) == [True, cliques, True, 3, [548, 0]]
    inject.fabric(tmp_path / "615.71.05", "0", "in-progress")
    assert program(tmp_path / "615.71.05", source) == [True, [], True, 2, [548, 0]]


def test_no_driver_no_library(tmp_path: Path, program: Program) -> None:
    build("cpu-only", tmp_path / "host")
    assert program(tmp_path / "host", "report(outcome(nvml.nvmlInit))", initialise=False) == NO_DRIVER


def test_two_hosts_in_one_process_are_two_libraries(standing_dgx: Path, tmp_path: Path, program: Program) -> None:
    build("cpu-only", tmp_path / "other")
    other = tmp_path / "other" / "lib" / "libnvidia-ml.so.1"
    source = f"other = ctypes.CDLL({str(other)!r})\nreport([other.nvmlInit_v2(), nvml.nvmlDeviceGetCount()])"
    assert program(standing_dgx, source) == [9, 8]


def test_the_loader_finds_it_by_its_name(standing_dgx: Path, program: Program) -> None:
    listing = subprocess.run(
        ["readelf", "-d", str(standing_dgx / "lib" / "libnvidia-ml.so.1")], capture_output=True, text=True, check=False
    )
    if listing.returncode != 0:
        pytest.skip("readelf is not installed")
    source = "nvml.nvmlLib = None\nnvml.nvmlInit()\nreport(nvml.nvmlDeviceGetCount())"
    assert program(standing_dgx, source, initialise=False, LD_LIBRARY_PATH=str(standing_dgx / "lib")) == 8


@pytest.mark.parametrize(("driver", "cuda", "brand"), [("470.256.02", 11040, 2), ("535.216.03", 12020, 14)])
@pytest.mark.parametrize("model", [T4, A100_PCIE])
def test_the_brand_of_data_center_gpus_depends_on_the_driver(
    tmp_path: Path, program: Program, model: GpuModel, driver: str, cuda: int, brand: int
) -> None:
    machine = Machine(
        "old-and-new",
        "a GPU under two generations of drivers",
        (NumaNode("0-3", 8 * GIB, (10,)),),
        (HostBridge("pci0000:00", 0, (gpu("0000:01:00.0", model, 0, machine="brand"),)),),
        nvidia=NvidiaDriver(driver, cuda),
    )
    build_machine(machine, tmp_path / "host")
    source = "h = nvml.nvmlDeviceGetHandleByIndex(0); report([nvml.nvmlDeviceGetBrand(h), nvml.nvmlDeviceGetName(h)])"
    assert program(tmp_path / "host", source) == [brand, model.name]
