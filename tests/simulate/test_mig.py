"""GPUs that are divided while programs look: the simulated NVML's MIG mode, instances, devices, folders and nodes."""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_simulate import build_machine, inject, mig, nvml
from dra_simulate.machine import HostBridge, Machine, NumaNode, NvidiaDriver
from dra_simulate.models import A100_PCIE, GIB, H100_SXM, GpuModel
from dra_simulate.parts.nvidia import gpu

Program = Callable[..., Any]


def with_gpus(name: str, *models: GpuModel) -> Machine:
    gpus = tuple(gpu(f"0000:0{minor + 1}:00.0", model, minor, machine=name) for minor, model in enumerate(models))
    node = NumaNode("0-3", 8 * GIB, (10,))
    driver = NvidiaDriver("570.124.06", 12080)
    return Machine(name, "for tests", (node,), (HostBridge("pci0000:00", 0, gpus),), nvidia=driver)


PAIR = with_gpus("pair", H100_SXM, H100_SXM)

INVALID, NOT_SUPPORTED, NOT_FOUND, IN_USE, NO_ROOM = "error 2", "error 3", "error 6", "error 19", "error 23"

MIG = """
h = nvml.nvmlDeviceGetHandleByIndex(0)
ONE, ONE_MEDIA, ONE_DOUBLE, TWO, THREE, FOUR, SEVEN = 19, 20, 15, 14, 9, 5, 0
SIZE = {19: 1, 20: 1, 15: 2, 14: 2, 9: 4, 5: 4, 0: 8}
def place(profile, start, gpu=h, size=None):
    placement = nvml.c_nvmlGpuInstancePlacement_t(start, size or SIZE[profile])
    return nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile, ctypes.byref(placement))
def number(instance):
    return nvml.nvmlGpuInstanceGetInfo(instance).id
def device(instance, profile=0):
    made = nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile)
    return nvml.nvmlComputeInstanceGetInfo_v2(made).device
def listed(function, of, profile, kind):
    room, count = (kind * 8)(), ctypes.c_uint()
    function(of, profile, room, ctypes.byref(count))
    return list(room)[:count.value]
def devices(gpu=h):
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        handle = outcome(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, index)
        if handle != "error 6":
            found.append(nvml.nvmlDeviceGetName(handle).rpartition(" ")[2])
    return found
nvml.nvmlDeviceSetMigMode(h, 1)
"""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The root of a simulated host with two H100."""
    build_machine(PAIR, tmp_path / "pair")
    return tmp_path / "pair"


def test_the_mode_of_an_idle_gpu_since_hopper_changes_at_once(host: Path, program: Program) -> None:
    source = """
h, busy = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
refused = [outcome(nvml.nvmlDeviceGetGpuInstanceRemainingCapacity, h, 19),
           outcome(nvml.nvmlDeviceCreateGpuInstance, h, 19), nvml.nvmlDeviceGetMaxMigDeviceCount(h)]
on = nvml.nvmlDeviceSetMigMode(h, 1)
mode = nvml.nvmlDeviceGetMigMode(h)
room = [nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(h, 19), nvml.nvmlDeviceGetMaxMigDeviceCount(h)]
nvml.nvmlDeviceCreateGpuInstance(h, 19)
report([refused, on, mode, room, nvml.nvmlDeviceSetMigMode(busy, 1), nvml.nvmlDeviceGetMigMode(busy),
      nvml.nvmlDeviceSetMigMode(h, 0), nvml.nvmlDeviceGetMigMode(h), outcome(nvml.nvmlDeviceSetMigMode, h, 2)])"""
    state = nvml.read(host / "lib")
    process = nvml.Process(state.devices[1].uuid, 4711, 1 << 30)
    nvml.write(host / "lib", nvml.NvmlState(state.format, state.driver, state.devices, processes=(process,)))
    used = 19
    refused = [NOT_SUPPORTED, NOT_SUPPORTED, 0]
    assert program(host, source) == [refused, 0, [1, 1], [7, 7], used, [0, 1], used, [1, 0], INVALID]


def test_the_mode_of_an_a100_waits_for_a_reset(tmp_path: Path, program: Program) -> None:
    machine = with_gpus("one", A100_PCIE)
    build_machine(machine, tmp_path / "host")
    reset_required = 16
    source = """
h = nvml.nvmlDeviceGetHandleByIndex(0)
report([nvml.nvmlDeviceSetMigMode(h, 1), nvml.nvmlDeviceGetMigMode(h),
      outcome(nvml.nvmlDeviceCreateGpuInstance, h, 0)])"""
    assert program(tmp_path / "host", source) == [reset_required, [0, 1], NOT_SUPPORTED]
    inject.reset(tmp_path / "host", "0", machine)
    after = "h = nvml.nvmlDeviceGetHandleByIndex(0)\nreport([nvml.nvmlDeviceGetMigMode(h)])"
    assert program(tmp_path / "host", after) == [[1, 1]]


@pytest.mark.parametrize(
    ("sequence", "fits"),
    [
        pytest.param("[(ONE, start) for start in range(7)]", [True] * 7, id="seven of one slice"),
        pytest.param("[(SEVEN, 0), (ONE, 6)]", [True, False], id="seven slices take the eighth memory slice too"),
        pytest.param(
            "[(THREE, 0), (THREE, 4), (ONE, 6)]", [True, True, False], id="two of three slices take all memory"
        ),
        pytest.param("[(THREE, 0), (TWO, 4), (ONE, 6), (ONE, 3)]", [True, True, True, False], id="three, two and one"),
        pytest.param("[(FOUR, 0), (THREE, 4), (ONE, 6)]", [True, True, False], id="four and three"),
        pytest.param("[(ONE_MEDIA, 0), (ONE_MEDIA, 1), (ONE, 1)]", [True, False, True], id="media engines once"),
        pytest.param("[(ONE_DOUBLE, 6), (ONE, 6), (ONE, 5)]", [True, False, True], id="double memory reaches further"),
    ],
)
def test_which_instances_fit_together(host: Path, program: Program, sequence: str, fits: list[bool]) -> None:
    reported = program(host, MIG + f"report([outcome(place, *wanted) != '{NO_ROOM}' for wanted in {sequence}])")
    assert reported == fits


def test_a_placement_that_no_profile_has(host: Path, program: Program) -> None:
    source = """
report([outcome(place, THREE, 2), outcome(place, ONE, 7), outcome(place, THREE, 0, h, 3),
        outcome(place, 99, 0, h, 1)])"""
    assert program(host, MIG + source) == [INVALID] * 4


def test_remaining_capacity_counts_further_instances(host: Path, program: Program) -> None:
    source = """
def left():
    every = (ONE, ONE_MEDIA, ONE_DOUBLE, TWO, THREE, FOUR, SEVEN)
    return [nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(h, profile) for profile in every]
rows = [left()]
three = place(THREE, 4)
rows.append(left())
one = place(ONE_MEDIA, 1)
rows.append(left())
nvml.nvmlGpuInstanceDestroy(three)
nvml.nvmlGpuInstanceDestroy(one)
report([*rows, left()])"""
    empty = [7, 1, 4, 3, 2, 1, 1]
    reported = program(host, MIG + source)
    assert reported == [empty, [4, 1, 2, 2, 1, 1, 0], [3, 0, 1, 1, 0, 0, 0], empty]


def test_the_driver_chooses_the_highest_place(host: Path, program: Program) -> None:
    source = """
made = [nvml.nvmlDeviceCreateGpuInstance(h, profile) for profile in (ONE, TWO, FOUR)]
infos = [nvml.nvmlGpuInstanceGetInfo(instance) for instance in made]
other = nvml.nvmlDeviceGetHandleByIndex(1)
nvml.nvmlDeviceSetMigMode(other, 1)
report([*([info.id, info.profileId, info.placement.start, info.placement.size] for info in infos),
      number(place(SEVEN, 0, other))])"""
    *reported, whole = program(host, MIG + source)
    # nvidia-smi mig -cgi 19,14,5 in NVIDIA's MIG user guide gives these placements.
    assert [place for _, *place in reported] == [[19, 6, 1], [14, 4, 2], [5, 0, 4]]
    one, two, four = (number for number, *_ in reported)
    assert one in range(7, 15) and two in range(3, 7) and four in range(1, 3) and whole == 0


def test_the_number_of_an_instance_does_not_follow_from_its_place(tmp_path: Path, program: Program) -> None:
    """DCGM#138: with one layout on every GPU, 2g at 0 is number 3 of the first and 5 of the second."""
    source = "report([number(place(TWO, 0)), nvml.nvmlDeviceGetComputeInstanceId(device(place(ONE, 5)))])"
    reported = []
    for seed in range(6):
        machine = replace(PAIR, nvidia=NvidiaDriver("570.124.06", 12080, id_seed=seed))
        build_machine(machine, tmp_path / str(seed))
        reported.append(program(tmp_path / str(seed), MIG + source))
    instances, computes = [set(numbers) for numbers in zip(*reported, strict=True)]
    assert len(instances) > 1 and instances <= {3, 4, 5, 6}
    assert len(computes) > 1 and computes <= set(range(8))
    assert reported[0][1] == 0


def test_instances_are_found_by_profile_and_number(host: Path, program: Program) -> None:
    source = """
made = [place(ONE, 2), place(ONE, 5), place(TWO, 0)]
numbers = [number(instance) for instance in made]
kind = nvml.c_nvmlGpuInstance_t
ones = [numbers.index(number(i)) for i in listed(nvml.nvmlDeviceGetGpuInstances, h, ONE, kind)]
again = nvml.nvmlDeviceGetGpuInstanceById(h, numbers[0])
unused = next(free for free in range(3, 7) if free not in numbers)
device(made[2], 0); device(made[2], 0)
parts = listed(nvml.nvmlGpuInstanceGetComputeInstances, made[2], 0, nvml.c_nvmlComputeInstance_t)
whole = listed(nvml.nvmlGpuInstanceGetComputeInstances, made[2], 1, nvml.c_nvmlComputeInstance_t)
info = nvml.nvmlComputeInstanceGetInfo_v2(nvml.nvmlGpuInstanceGetComputeInstanceById(made[2], 1))
report([sorted(ones), numbers.index(number(again)), outcome(nvml.nvmlDeviceGetGpuInstanceById, h, unused),
      outcome(nvml.nvmlDeviceGetGpuInstanceById, h, 77), len(parts), len(whole),
      [info.id, info.profileId, info.placement.start, info.placement.size,
       numbers.index(number(info.gpuInstance))],
      outcome(nvml.nvmlGpuInstanceGetComputeInstanceById, made[2], 2)])"""
    assert program(host, MIG + source) == [[0, 1], 0, NOT_FOUND, NOT_FOUND, 2, 0, [1, 0, 1, 1, 2], NOT_FOUND]


def test_compute_instances_share_the_resources_of_their_gpu_instance(host: Path, program: Program) -> None:
    source = """
three = place(THREE, 0)
def profile(number, version):
    info = outcome(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, three, number, 0, version)
    if isinstance(info, str):
        return info
    named = [info.name] if version == 2 else []
    return [info.id, info.sliceCount, info.instanceCount, info.multiprocessorCount, info.sharedDecoderCount, *named]
left = nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity
room = [left(three, number) for number in (0, 1, 2)]
two = device(three, 1)
after = [left(three, number) for number in (0, 1, 2)]
one = device(three, 0)
def of(handle):
    a = nvml.nvmlDeviceGetAttributes_v2(handle)
    return [nvml.nvmlDeviceGetName(handle), a.multiprocessorCount, a.sharedDecoderCount, a.gpuInstanceSliceCount,
            a.computeInstanceSliceCount, a.memorySizeMB, nvml.nvmlDeviceGetComputeInstanceId(handle)]
report([[profile(number, 2) for number in range(10)], profile(1, 1), room, after, of(two), of(one),
      outcome(nvml.nvmlGpuInstanceCreateComputeInstance, three, 0),
      outcome(nvml.nvmlGpuInstanceCreateComputeInstance, three, 3),
      outcome(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, three, 0, 1)])"""
    reported = program(host, MIG + source)
    assert reported == [
        [
            [0, 1, 3, 16, 3, "MIG 1c.3g.40gb"],
            [1, 2, 1, 32, 3, "MIG 2c.3g.40gb"],
            [2, 3, 1, 60, 3, "MIG 3g.40gb"],
            *[NOT_SUPPORTED] * 6,
            INVALID,
        ],
        [1, 2, 1, 32, 3],
        [3, 1, 1],
        [1, 0, 0],
        ["NVIDIA H100 80GB HBM3 MIG 2c.3g.40gb", 32, 3, 3, 2, 40448, 0],
        ["NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb", 16, 3, 3, 1, 40448, 1],
        NO_ROOM,
        NOT_SUPPORTED,
        INVALID,
    ]


def test_a_mig_device_answers_for_its_part_only(host: Path, program: Program) -> None:
    made = """
first, second = place(ONE, 0), place(TWO, 2)
mine, other = device(first), device(second, 1)
report([nvml.nvmlDeviceGetUUID(mine), nvml.nvmlDeviceGetUUID(other), number(first), number(second)])"""
    *uuids, one, two = program(host, MIG + made)
    state = nvml.read(host / "lib")
    processes = (
        nvml.Process(state.devices[0].uuid, 1, 1 << 30, one, 0),
        nvml.Process(state.devices[0].uuid, 2, 2 << 30, two, 0),
    )
    nvml.write(host / "lib", nvml.NvmlState(state.format, state.driver, state.devices, processes=processes))
    source = f"""
mine = nvml.nvmlDeviceGetHandleByUUID({uuids[0].encode()!r})
parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mine)
memory, exact = nvml.nvmlDeviceGetMemoryInfo(mine), nvml.nvmlDeviceGetMemoryInfo(mine, nvml.nvmlMemory_v2)
def pids(handle):
    return [[p.pid, p.gpuInstanceId, p.computeInstanceId] for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
report([devices(), nvml.nvmlDeviceIsMigDeviceHandle(mine).value, nvml.nvmlDeviceIsMigDeviceHandle(h).value,
      nvml.nvmlDeviceGetUUID(parent), nvml.nvmlDeviceGetGpuInstanceId(mine), nvml.nvmlDeviceGetComputeInstanceId(mine),
      [memory.total >> 20, memory.used >> 20, exact.total >> 20, exact.used >> 20, exact.reserved],
      pids(mine), pids(h), nvml.nvmlDeviceGetMemoryInfo(h, nvml.nvmlMemory_v2).used >> 20,
      [outcome(f, mine) for f in (nvml.nvmlDeviceGetMinorNumber, nvml.nvmlDeviceGetMigMode, nvml.nvmlDeviceGetSerial)],
      [outcome(f, h) for f in (nvml.nvmlDeviceGetGpuInstanceId, nvml.nvmlDeviceGetAttributes_v2)],
      outcome(nvml.nvmlDeviceGetHandleByUUID, b"MIG-nobody"), outcome(nvml.nvmlGpuInstanceGetInfo, h)])"""
    assert program(host, MIG + source) == [
        ["2g.20gb", "1g.10gb"],
        1,
        0,
        state.devices[0].uuid,
        one,
        0,
        [9984, 1024, 9984, 1024, 0],
        [[1, one, 0]],
        [[1, one, 0], [2, two, 0]],
        3 * 1024,
        [NOT_SUPPORTED] * 3,
        [NOT_SUPPORTED] * 2,
        NOT_FOUND,
        INVALID,
    ]


def test_an_instance_in_use_is_not_destroyed(host: Path, program: Program) -> None:
    one = program(host, MIG + "made = place(ONE, 0); device(made); report(number(made))")
    state = nvml.read(host / "lib")
    busy = (nvml.Process(state.devices[0].uuid, 1, 1 << 30, one, 0),)
    nvml.write(host / "lib", nvml.NvmlState(state.format, state.driver, state.devices, processes=busy))
    source = f"""
instance = nvml.nvmlDeviceGetGpuInstanceById(h, {one})
compute = nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
report([outcome(nvml.nvmlGpuInstanceDestroy, instance), outcome(nvml.nvmlComputeInstanceDestroy, compute)])"""
    assert program(host, MIG + source) == [IN_USE, IN_USE]
    nvml.write(host / "lib", nvml.NvmlState(state.format, state.driver, state.devices))
    gone = """
stale = nvml.nvmlDeviceGetMigDeviceHandleByIndex(h, 0)
before = [outcome(nvml.nvmlComputeInstanceDestroy, compute), devices(), outcome(nvml.nvmlGpuInstanceDestroy, instance)]
report(before + [outcome(nvml.nvmlComputeInstanceDestroy, compute), outcome(nvml.nvmlGpuInstanceDestroy, instance),
     outcome(nvml.nvmlDeviceGetUUID, stale), outcome(nvml.nvmlGpuInstanceGetInfo, instance)])"""
    begin = source.rpartition("report(")[0]
    assert program(host, MIG + begin + gone) == [0, [], 0, *[INVALID] * 4]


def test_an_instance_made_again_has_another_uuid_and_the_same_number(host: Path, program: Program) -> None:
    source = """
uuids, numbers = [], set()
for _ in range(3):
    instance = place(ONE, 0)
    numbers.add(number(instance))
    uuids.append(nvml.nvmlDeviceGetUUID(device(instance)))
    nvml.nvmlComputeInstanceDestroy(nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
    nvml.nvmlGpuInstanceDestroy(instance)
numbers.add(number(place(ONE, 0)))
report([len(set(uuids)), len(numbers), [len(part) for part in uuids[0].split("-")], uuids[0][18]])"""
    reported = program(host, MIG + source)
    assert reported == [3, 1, [3, 8, 4, 4, 4, 12], "5"]


def test_folders_and_nodes_come_and_go_with_instances(host: Path, program: Program) -> None:
    capabilities = host / "proc/driver/nvidia/capabilities"
    made = """
h = nvml.nvmlDeviceGetHandleByIndex(1)
nvml.nvmlDeviceSetMigMode(h, 1)
instance = place(TWO, 4, h)
device(instance, 1)
report(number(instance))"""
    two = program(host, MIG + made)
    # As the driver's mig-minors numbers them: gpu1/gi0 is 138, nine for each GPU instance.
    instance, compute = 138 + two * 9, 138 + two * 9 + 1
    for folder, number in ((f"gi{two}", instance), (f"gi{two}/ci0", compute)):
        text = (capabilities / "gpu1/mig" / folder / "access").read_text()
        assert text == f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        node = (host / f"dev/nvidia-caps/nvidia-cap{number}").lstat()
        assert stat.S_IMODE(node.st_mode) == 0o444
        if stat.S_ISCHR(node.st_mode):
            assert node.st_rdev == (510 << 8 | number & 0xFF | (number & ~0xFF) << 12)
    build_machine(PAIR, host)
    assert (capabilities / f"gpu1/mig/gi{two}/ci0/access").exists(), "a rebuild keeps instances"
    destroyed = f"""
h = nvml.nvmlDeviceGetHandleByIndex(1)
instance = nvml.nvmlDeviceGetGpuInstanceById(h, {two})
nvml.nvmlComputeInstanceDestroy(nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
between = nvml.nvmlDeviceGetMaxMigDeviceCount(h), devices(h)
nvml.nvmlGpuInstanceDestroy(instance)
report(between)"""
    assert program(host, MIG + destroyed) == [7, []]
    assert list((capabilities / "gpu1/mig").rglob("*")) == []
    assert sorted(path.name for path in (host / "dev/nvidia-caps").iterdir()) == ["nvidia-cap1", "nvidia-cap2"]


def test_instances_outlive_the_process_and_are_lost_with_the_gpu(host: Path, program: Program) -> None:
    program(host, MIG + "device(place(ONE, 0)); report(1)")
    assert program(host, "h = nvml.nvmlDeviceGetHandleByIndex(0)\n" + MIG + "report(devices())") == ["1g.10gb"]
    uuid = nvml.read(host / "lib").devices[0].uuid
    assert [instance.start for instance in mig.read(host)[uuid].gpu_instances] == [0]
    inject.unplug(host, "0", PAIR)
    inject.replug(host, "0", PAIR)
    assert mig.read(host)[uuid].gpu_instances == ()
    assert not list((host / "dev/nvidia-caps").glob("nvidia-cap[3-9]*"))
    assert program(host, MIG + "report(devices())") == []


def test_processes_that_divide_at_the_same_time_lose_nothing(host: Path, program: Program) -> None:
    reported: list[Any] = []
    source = MIG + "report(len([1 for start in range(7) if outcome(place, ONE, start) != 'error 23']))"
    threads = [threading.Thread(target=lambda: reported.append(program(host, source))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(reported) == 7, reported
    uuid = nvml.read(host / "lib").devices[0].uuid
    assert sorted(instance.start for instance in mig.read(host)[uuid].gpu_instances) == list(range(7))
