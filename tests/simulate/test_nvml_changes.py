"""A host that changes while a program uses its NVML: GPUs lost, XIDs raised, calls that hang or fail, damaged state."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_agent.errors import UsageError
from dra_simulate import build, inject, nvml
from eventually import eventually

Program = Callable[..., Any]

# A program that reports when it is ready and then waits for the change of the host.
WAITS = """
import pathlib, time
mark = pathlib.Path({mark!r})
def ready():
    mark.touch()
def until(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
"""


def run_during(program: Program, root: Path, source: str, act: Callable[[], object]) -> Any:
    """Run a program; when it is ready, act on the host; return what the program reported."""
    mark = root / "ready"
    mark.unlink(missing_ok=True)
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(program(root, WAITS.format(mark=str(mark)) + source)))
    thread.start()
    eventually(lambda: mark.exists() or not thread.is_alive())
    act()
    thread.join()
    return result[0]


def test_an_unplugged_gpu_is_lost_and_comes_back(dgx: Path, program: Program) -> None:
    source = """
held = nvml.nvmlDeviceGetHandleByPciBusId(b"0000:52:00.0")
last = nvml.nvmlDeviceGetHandleByIndex(7)
ready()
until(lambda: nvml.nvmlDeviceGetCount() == 7)
report([nvml.nvmlDeviceGetCount(), outcome(nvml.nvmlDeviceGetName, held),
      outcome(nvml.nvmlDeviceGetHandleByPciBusId, b"0000:52:00.0"), outcome(nvml.nvmlDeviceGetMemoryInfo, held),
      nvml.nvmlDeviceGetIndex(last), outcome(nvml.nvmlDeviceGetTopologyCommonAncestor, last, held)])"""
    reported = run_during(program, dgx, source, lambda: inject.unplug(dgx, "0000:52:00.0"))
    assert reported == [7, "error 15", "error 15", "error 15", 6, "error 15"]
    assert not (dgx / "dev/nvidia2").exists()
    assert not (dgx / "sys/bus/pci/devices/0000:52:00.0").is_symlink()
    build("dgx-h100", dgx)
    assert not (dgx / "dev/nvidia2").exists(), "a rebuild keeps it unplugged"
    assert inject.replug(dgx, "0000:52:00.0") == "0000:52:00.0"
    assert (dgx / "dev/nvidia2").exists()
    assert program(dgx, "report(nvml.nvmlDeviceGetCount())") == 8


def test_an_xid_reaches_only_registered_event_sets(dgx: Path, program: Program) -> None:
    inject.xid(dgx, "0", 13)
    source = """
handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
watching, other = nvml.nvmlEventSetCreate(), nvml.nvmlEventSetCreate()
for h in handles:
    kinds = nvml.nvmlEventTypeXidCriticalError & nvml.nvmlDeviceGetSupportedEventTypes(h)
    nvml.nvmlDeviceRegisterEvents(h, kinds, watching)
nvml.nvmlDeviceRegisterEvents(handles[0], nvml.nvmlEventTypeDoubleBitEccError, other)
quiet = outcome(nvml.nvmlEventSetWait_v2, watching, 0)
ready()
data = nvml.nvmlEventSetWait_v2(watching, 60000)
report([quiet, nvml.nvmlDeviceGetIndex(data.device), data.eventType, data.eventData, data.gpuInstanceId,
      outcome(nvml.nvmlEventSetWait_v2, watching, 20), outcome(nvml.nvmlEventSetWait_v2, other, 20),
      outcome(nvml.nvmlDeviceRegisterEvents, handles[0], 1 << 40, watching),
      outcome(nvml.nvmlEventSetFree, watching), outcome(nvml.nvmlEventSetWait_v2, watching, 0)])"""
    reported = run_during(program, dgx, source, lambda: inject.xid(dgx, "1", 48))
    timeout, unsupported, invalid = "error 10", "error 3", "error 2"
    assert reported == [timeout, 1, 8, 48, 0xFFFFFFFF, timeout, timeout, unsupported, None, invalid]


def test_a_watched_gpu_that_falls_off_the_bus_is_xid_79_and_then_lost_once(dgx: Path, program: Program) -> None:
    source = """
watching = nvml.nvmlEventSetCreate()
nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlEventTypeXidCriticalError, watching)
ready()
first = nvml.nvmlEventSetWait_v2(watching, 60000)
report([first.eventData] + [outcome(nvml.nvmlEventSetWait_v2, watching, wait) for wait in (60000, 10)])"""
    reported = run_during(program, dgx, source, lambda: inject.unplug(dgx, "0000:1b:00.0"))
    assert reported == [79, "error 15", "error 10"]


def test_a_hung_call_hangs_alone_and_comes_back(dgx: Path, program: Program) -> None:
    inject.hang(dgx, "nvmlDeviceGetMemoryInfo", device="3")
    source = """
import threading
hung, fine = nvml.nvmlDeviceGetHandleByIndex(3), nvml.nvmlDeviceGetHandleByIndex(4)
answers = []
thread = threading.Thread(target=lambda: answers.append(nvml.nvmlDeviceGetMemoryInfo(hung).total))
thread.start()
others = [nvml.nvmlDeviceGetMemoryInfo(fine).total > 0, nvml.nvmlDeviceGetMinorNumber(hung)]
thread.join(0.2)
still = thread.is_alive()
ready()
thread.join(60)
report([others, still, len(answers)])"""
    reported = run_during(program, dgx, source, lambda: inject.clear(dgx))
    assert reported == [[True, 3], True, 1]


def test_slow_and_failing_calls(dgx: Path, program: Program) -> None:
    inject.delay(dgx, "nvmlDeviceGetName", 150)
    inject.fail(dgx, "nvmlDeviceGetTemperature", 16, device="1")
    inject.fail(dgx, "nvmlInit", 18)
    source = """
import time
failed = outcome(nvml.nvmlInit)
ready()
until(lambda: not isinstance(outcome(nvml.nvmlInit), str))
h = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
started = time.monotonic()
nvml.nvmlDeviceGetName(h[0])
report([failed, time.monotonic() - started >= 0.15, outcome(nvml.nvmlDeviceGetTemperature, h[1], 0),
      outcome(nvml.nvmlDeviceGetTemperature, h[0], 0)])"""

    def only_init_works_again() -> None:
        state = nvml.read(dgx / "lib")
        rest = tuple(fault for fault in state.faults if fault.function != "nvmlInit")
        nvml.write(dgx / "lib", nvml.NvmlState(state.format, state.driver, state.devices, rest, state.events))

    def run(root: Path, text: str) -> Any:
        return program(root, text, initialise=False)

    assert run_during(run, dgx, source, only_init_works_again) == ["error 18", True, "error 16", 34]
    assert inject.clear(dgx) == 2
    assert inject.clear(dgx) == 0


def test_settings_are_kept_for_every_process(dgx: Path, program: Program) -> None:
    source = """
h = nvml.nvmlDeviceGetHandleByIndex(0)
nvml.nvmlDeviceSetComputeMode(h, nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
nvml.nvmlDeviceSetPersistenceMode(h, 0)
report([nvml.nvmlDeviceGetComputeMode(h), nvml.nvmlDeviceGetPersistenceMode(h),
      outcome(nvml.nvmlDeviceSetComputeMode, h, 1), outcome(nvml.nvmlDeviceSetComputeMode, h, 9)])"""
    assert program(dgx, source) == [3, 0, "error 3", "error 2"]
    build("dgx-h100", dgx)
    again = """
h = nvml.nvmlDeviceGetHandleByIndex(0)
report([nvml.nvmlDeviceGetComputeMode(h), nvml.nvmlDeviceGetPersistenceMode(h)])"""
    assert program(dgx, again) == [3, 0]


def test_processes_take_memory(dgx: Path, program: Program) -> None:
    state = nvml.read(dgx / "lib")
    process = nvml.Process(state.devices[0].uuid, 4711, 5 << 30)
    nvml.write(dgx / "lib", nvml.NvmlState(state.format, state.driver, state.devices, processes=(process,)))
    source = """
h = nvml.nvmlDeviceGetHandleByIndex(0)
listed = nvml.nvmlDeviceGetComputeRunningProcesses(h)
report([nvml.nvmlDeviceGetMemoryInfo(h, nvml.nvmlMemory_v2).used, [(p.pid, p.usedGpuMemory) for p in listed]])"""
    assert program(dgx, source) == [5 << 30, [[4711, 5 << 30]]]


def test_a_torn_state_leaves_the_last_good_one(dgx: Path, program: Program) -> None:
    path = dgx / "lib" / "nvml.json"
    whole = path.read_bytes()
    source = """
before = nvml.nvmlDeviceGetCount()
ready()
until(lambda: pathlib.Path(sys.argv[1]).with_name("nvml.json").stat().st_size < 5000)
report([before, nvml.nvmlDeviceGetCount(), nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0))])"""
    assert run_during(program, dgx, source, lambda: path.write_bytes(whole[:4000])) == [
        8,
        8,
        "NVIDIA H100 80GB HBM3",
    ]
    fresh = "report(outcome(nvml.nvmlInit))"
    assert program(dgx, fresh, initialise=False) == "error 999", "nothing good was ever read"
    build("dgx-h100", dgx)
    assert json.loads(path.read_bytes()) == json.loads(whole), "a rebuild repairs it"
    path.unlink()
    assert program(dgx, fresh, initialise=False) == "error 9"


def test_another_state_file_by_variable(dgx: Path, tmp_path: Path, program: Program) -> None:
    other = tmp_path / "elsewhere.json"
    state = nvml.read(dgx / "lib")
    replaced = nvml.NvmlState(state.format, state.driver, state.devices[:3])
    nvml.write(tmp_path, replaced)
    (tmp_path / nvml.STATE).rename(other)
    assert program(dgx, "report(nvml.nvmlDeviceGetCount())", DRA_AGENT_NVML_STATE=str(other)) == 3


def test_many_threads_and_many_changes(dgx: Path, program: Program) -> None:
    source = """
import threading
stop, wrong = threading.Event(), []
def work(index):
    while not stop.is_set():
        for call in (lambda: nvml.nvmlDeviceGetHandleByIndex(index), nvml.nvmlDeviceGetCount):
            answer = outcome(call)
            if isinstance(answer, str) and answer not in ("error 2", "error 15"):
                wrong.append(answer)
threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1, 6, 7)]
[thread.start() for thread in threads]
ready()
until(lambda: pathlib.Path(str(mark) + ".done").exists())
stop.set()
[thread.join() for thread in threads]
report([wrong, nvml.nvmlDeviceGetCount()])"""

    def churn() -> None:
        for _ in range(2):
            inject.unplug(dgx, "7")
            inject.replug(dgx, "7")
        (dgx / "ready.done").touch()

    assert run_during(program, dgx, source, churn) == [[], 8]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda root: inject.unplug(root, "0000:77:00.0"), "no device '0000:77:00.0' in dgx-h100; known: 0000:01:00.0"),
        (
            lambda root: inject.xid(root, "mlx5_0", 48),
            "0000:18:00.0 is not an NVIDIA GPU; the GPUs of dgx-h100: 0000:1b:00.0",
        ),
        (
            lambda root: inject.hang(root, "nvmlDeviceGetNothing"),
            "the simulated NVML has no function 'nvmlDeviceGetNoth",
        ),
        (lambda root: inject.replug(root, "1b:00.0"), "0000:1b:00.0 is not unplugged; unplugged are: none"),
        (lambda root: inject.clear(root / "nowhere"), "not a simulated host; make one with `dra-agent simulate build"),
        (lambda root: build("dgx", root), "unknown profile 'dgx'; known: dgx-h100"),
    ],
)
def test_wrong_wishes_are_refused(dgx: Path, call: Callable[[Path], object], message: str) -> None:
    before = nvml.read(dgx / "lib")
    with pytest.raises(UsageError) as caught:
        call(dgx)
    assert message in str(caught.value)
    assert nvml.read(dgx / "lib") == before
