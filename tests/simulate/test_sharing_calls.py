"""What sharing a GPU asks of NVML: limits of memory by control group, processes, events of instances, and faults that
happen to some calls only, before or after they have their effect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_agent.errors import UsageError
from dra_simulate import build_machine, inject, mig, nvml
from dra_simulate.machine import HostBridge, Machine, NumaNode, NvidiaDriver
from dra_simulate.models import GIB, H100_SXM
from dra_simulate.parts.nvidia import gpu
from eventually import eventually

Program = Callable[..., Any]

INVALID, NOT_SUPPORTED, NOT_FOUND, NO_FUNCTION, IN_USE = "error 2", "error 3", "error 6", "error 13", "error 19"
WHOLE = 0xFFFF_FFFF


def machine(cuda: int) -> Machine:
    gpus = tuple(gpu(f"0000:0{minor + 1}:00.0", H100_SXM, minor, machine="two") for minor in range(2))
    node = NumaNode("0-3", 8 * GIB, (10,))
    return Machine(
        "two", "for tests", (node,), (HostBridge("pci0000:00", 0, gpus),), nvidia=NvidiaDriver("615.71", cuda)
    )


PAIR = machine(13040)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The root of a simulated host with two H100 and a driver that limits memory."""
    build_machine(PAIR, tmp_path / "two")
    return tmp_path / "two"


MIG = """
def divide(gpu):
    nvml.nvmlDeviceSetMigMode(gpu, 1)
    return nvml.nvmlDeviceCreateGpuInstance(gpu, 19)
handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
"""

LIMITS = """
h, other = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
NO_LIMIT = nvml.NVML_DEVICE_MEMORY_LIMIT_MAX
def limit(soft, hard, group, on=h):
    return outcome(nvml.nvmlDeviceSetMemoryLimits_v1, on, nvml.c_nvmlSetMemoryLimits_v1_t(group, soft, hard))
def limits_of(group, on=h):
    limits = nvml.c_nvmlGetMemoryLimits_v1_t(group)
    nvml.nvmlDeviceGetMemoryLimits_v1(on, limits)
    return [limits.softLimit, limits.hardLimit if limits.hardLimit != NO_LIMIT else "none", limits.currentUsed]
"""


def test_a_control_group_is_limited_on_one_gpu_until_it_is_gone(host: Path, tmp_path: Path, program: Program) -> None:
    group = tmp_path / "kubepods-pod1"
    group.mkdir()
    source = f"""
group = {str(group).encode()!r}
report([limits_of(group), limit(1 << 30, 4 << 30, group), limits_of(group), limits_of(group, other),
        limits_of(b"/another")])"""
    free = [0, "none", 0]
    assert program(host, LIMITS + source) == [free, None, [1 << 30, 4 << 30, 0], free, free]
    inject.start_process(host, "0", 77, 3 << 30, PAIR, cgroup=str(group))
    inject.start_process(host, "1", 77, 1 << 30, PAIR, cgroup=str(group))
    again = f"report([limits_of({str(group).encode()!r}), limits_of({str(group).encode()!r}, other)])"
    assert program(host, LIMITS + again) == [[1 << 30, 4 << 30, 3 << 30], [0, "none", 1 << 30]]
    build_machine(PAIR, host)
    assert program(host, LIMITS + again)[0] == [1 << 30, 4 << 30, 3 << 30], "a rebuild keeps them"
    assert inject.end_process(host, 77) == 2
    group.rmdir()
    assert program(host, LIMITS + again)[0] == free


def test_limits_that_are_none_and_those_that_cannot_be(host: Path, program: Program) -> None:
    source = """
report([limit(2, 1, b"/a"), limit(0, 1, b""), limit(0, 1, None), limit(0, 5 << 30, b"/a"), limits_of(b"/a"),
      limit(0, NO_LIMIT, b"/a"), limits_of(b"/a"), limit(0, NO_LIMIT, b"/never"),
      library.nvmlDeviceSetMemoryLimits_v1(h, None)])"""
    results = program(host, LIMITS + "library = nvml.nvmlLib\n" + source)
    assert results == [INVALID, INVALID, INVALID, None, [0, 5 << 30, 0], None, [0, "none", 0], None, 2]
    on_a_slice = """
instance = divide(handles[0])
device = nvml.nvmlComputeInstanceGetInfo_v2(nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)).device
report(limit(0, 1, b"/a", device))"""
    assert program(host, MIG + LIMITS + on_a_slice) == NOT_SUPPORTED


def test_an_older_driver_has_no_limits(tmp_path: Path, program: Program) -> None:
    build_machine(machine(12080), tmp_path / "old")
    assert (
        program(tmp_path / "old", LIMITS + 'report([limit(0, 1, b"/a"), outcome(limits_of, b"/a")])')
        == [NO_FUNCTION] * 2
    )


UTILIZATION = """
h, other = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
def used(gpu, since=0):
    samples = outcome(nvml.nvmlDeviceGetProcessUtilization, gpu, since)
    if isinstance(samples, str):
        return samples
    return [[s.pid, s.smUtil, s.memUtil, s.encUtil, s.decUtil] for s in samples]
"""


def test_each_process_that_worked_has_a_sample(host: Path, program: Program) -> None:
    inject.start_process(host, "0", 77, 1 << 30, PAIR, utilization=(40, 10))
    inject.start_process(host, "0", 78, 1 << 30, PAIR)
    in_a_minute = "(int(time.time()) + 60) * 1000000"
    source = f"import time\nreport([used(h), used(other), used(h, {in_a_minute})])"
    assert program(host, UTILIZATION + source) == [[[77, 40, 10, 0, 0]], NOT_FOUND, NOT_FOUND]
    inject.start_process(host, "0", 77, 1 << 30, PAIR, utilization=(0, 3))
    assert program(host, UTILIZATION + "report(used(h))") == [[77, 0, 3, 0, 0]], "a process is replaced"


def test_a_gpu_in_mig_mode_has_no_utilization_by_process(host: Path, program: Program) -> None:
    source = "nvml.nvmlDeviceSetMigMode(h, 1)\nreport(used(h))"
    assert program(host, UTILIZATION + source) == NOT_SUPPORTED
    inject.start_process(host, "0", 77, 1 << 30, PAIR, utilization=(40, 10))
    assert program(host, UTILIZATION + "report(used(h))") == NOT_SUPPORTED


def test_an_event_names_the_instance_that_it_is_about(host: Path, program: Program) -> None:
    source = """
import os
watching = nvml.nvmlEventSetCreate()
nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlEventTypeXidCriticalError, watching)
open(os.environ["READY"], "w").close()
events = [nvml.nvmlEventSetWait_v2(watching, 60000) for _ in range(3)]
report([[event.eventData, event.gpuInstanceId, event.computeInstanceId] for event in events])"""
    ready = host / "ready"

    def raise_them() -> None:
        eventually(ready.exists)
        inject.xid(host, "0", 13, PAIR)
        inject.xid(host, "0", 48, PAIR, gpu_instance=9)
        inject.xid(host, "0", 94, PAIR, gpu_instance=9, compute_instance=1)

    thread = threading.Thread(target=raise_them)
    thread.start()
    results = program(host, source, READY=str(ready))
    thread.join()
    assert results == [[13, WHOLE, WHOLE], [48, 9, WHOLE], [94, 9, 1]]


def test_so_many_calls_fail_after_a_while_and_then_none_does(host: Path, program: Program) -> None:
    inject.fail(host, "nvmlDeviceCreateGpuInstance", 19, "0", PAIR, milliseconds=200, times=2)
    source = """
import pathlib, time
def timed(gpu):
    began = time.monotonic()
    made = outcome(nvml.nvmlDeviceCreateGpuInstance, gpu, 19)
    failed = isinstance(made, str)
    return [made if failed else "made", not failed or time.monotonic() - began >= 0.2, faults()]
def faults():
    state = pathlib.Path(sys.argv[1]).with_name("nvml.json")
    return [fault["times"] for fault in json.loads(state.read_text())["faults"]]
for gpu in handles:
    nvml.nvmlDeviceSetMigMode(gpu, 1)
report([timed(handles[1]), *(timed(handles[0]) for _ in range(3))])"""
    assert program(host, MIG + source) == [
        ["made", True, [2]],
        [IN_USE, True, [1]],
        [IN_USE, True, [0]],
        ["made", True, [0]],
    ]
    assert program(host, MIG + "report(outcome(divide, handles[0]) != 'error 19')"), "no other process gets it either"


def test_a_call_that_fails_after_its_effect_has_had_it(host: Path, program: Program) -> None:
    inject.fail(host, "nvmlDeviceCreateGpuInstance", 999, "0", PAIR, times=1, when="after")
    source = """
first = outcome(divide, handles[0])
report([first, nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handles[0], 19)])"""
    assert program(host, MIG + source) == ["error 999", 6]


@pytest.mark.parametrize(("when", "instances"), [("before", 0), ("after", 1)])
def test_a_process_is_killed_in_a_call(host: Path, when: Any, instances: int) -> None:
    inject.kill(host, "nvmlDeviceCreateGpuInstance", "0", PAIR, when=when)
    done = run(host, MIG + "divide(handles[0])")
    assert done.returncode == -signal.SIGKILL
    uuid = nvml.read(host / "lib").devices[0].uuid
    assert len(mig.read(host)[uuid].gpu_instances) == instances
    assert run(host, MIG + "divide(handles[0])").returncode == 0, "once"


def test_the_agent_is_killed_with_the_process_that_has_the_library(host: Path, tmp_path: Path) -> None:
    inject.kill(host, "nvmlDeviceGetName", None, PAIR, process="agent")
    inner = script(host, "nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0))")
    survived = tmp_path / "survived"
    agent = f"""
import pathlib, subprocess, sys, time
subprocess.run([sys.executable, "-c", {inner!r}])
time.sleep(5)
pathlib.Path({str(survived)!r}).touch()"""
    assert subprocess.run([sys.executable, "-c", agent], timeout=120, check=False).returncode == -signal.SIGKILL
    assert not survived.exists()


def test_from_the_command_line(tmp_path: Path) -> None:
    root = tmp_path / "vm"

    def simulate(*arguments: str) -> str:
        command = [sys.executable, "-m", "dra_agent", "simulate", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        return done.stdout

    simulate("build", "vm-1gpu", str(root))
    assert "raised XID 48" in simulate("xid", str(root), "0", "48", "--instance", "9/1")
    assert "computes on GPU-" in simulate("process", str(root), "5", "--device", "0", "--memory", "512")
    simulate("fail", str(root), "nvmlDeviceGetName", "--code", "19", "--milliseconds", "5", "--times", "2", "--after")
    simulate("kill", str(root), "nvmlDeviceGetUUID", "--agent", "--times", "3")
    state = nvml.read(root / "lib")
    uuid = state.devices[0].uuid
    assert [(event.data, event.gpu_instance, event.compute_instance) for event in state.events] == [(48, 9, 1)]
    assert state.processes == (nvml.Process(uuid, 5, 512 << 20),)
    assert state.faults == (
        nvml.Fault("nvmlDeviceGetName", delay_ms=5, code=19, times=2, when="after"),
        nvml.Fault("nvmlDeviceGetUUID", kill="agent", times=3),
    )
    assert "ended on 1 GPUs" in simulate("process", str(root), "5")
    assert "reset GPU-" in simulate("reset", str(root), "0")
    with pytest.raises(UsageError, match="has no function"):
        inject.kill(root, "nvmlDeviceNobody")


def script(host: Path, source: str) -> str:
    library = str(host / "lib" / nvml.LIBRARY)
    return f"import ctypes, pynvml as nvml\nnvml.nvmlLib = ctypes.CDLL({library!r})\nnvml.nvmlInit()\n{source}"


def run(host: Path, source: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", script(host, source)], timeout=120, check=False, env=dict(os.environ))
