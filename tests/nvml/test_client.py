"""The library's process: deadlines, lanes, and every way in which it can end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

import dra_agent
import tiers
from dra_agent.malloc import NO_THREAD_CACHE, TUNABLES
from dra_agent.nvml.client import (
    CallTimeoutError,
    LibraryNotFoundError,
    NvmlCallError,
    NvmlWorker,
    StaleHandleError,
    WorkerExitedError,
)
from dra_simulate import inject, nvml
from eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.usefixtures("real_children")
ONE, OTHER = "one", "other"
PACKAGE = Path(dra_agent.__file__).parent
BUS = b"00000000:00:04.0"


@pytest.fixture
def library(root: Path) -> Path:
    return root / "lib" / nvml.LIBRARY


@pytest.fixture(autouse=True)
def time_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.nvml.client.START_TIMEOUT_S", DEADLINE_S)


@pytest.fixture
def process(library: Path) -> Iterator[NvmlWorker]:
    made = NvmlWorker(pynvml, library, 1)
    made.call("all", DEADLINE_S, "nvmlInitWithFlags", 0)
    yield made
    made.close()


def handle(process: NvmlWorker, bus: bytes = BUS) -> Any:
    return process.call("handles", DEADLINE_S, "nvmlDeviceGetHandleByPciBusId", bus)


def test_answers_and_refusals_come_back(process: NvmlWorker) -> None:
    gpu = handle(process)
    assert process.call(ONE, DEADLINE_S, "nvmlDeviceGetUUID", gpu).startswith("GPU-")
    assert process.call(ONE, DEADLINE_S, "nvmlDeviceGetMemoryInfo", gpu).total > 1 << 30
    with pytest.raises(NvmlCallError, match="Not Found") as refused:
        handle(process, b"00000000:99:00.0")
    assert refused.value.code == pynvml.NVML_ERROR_NOT_FOUND
    with pytest.raises(TypeError, match="nvmlNoSuchThing"):
        process.call(ONE, DEADLINE_S, "nvmlNoSuchThing")
    assert process.pid != os.getpid() and not process.ended and not process.busy


def test_its_threads_keep_no_free_memory(process: NvmlWorker) -> None:
    variables = Path(f"/proc/{process.pid}/environ").read_text().split("\0")
    (tunables,) = [value for value in variables if value.startswith(f"{TUNABLES}=")]
    assert NO_THREAD_CACHE in tunables


def test_a_call_that_hangs_keeps_its_lane_and_no_other(process: NvmlWorker, root: Path) -> None:
    gpu = handle(process)
    inject.hang(root, "nvmlDeviceGetUUID")
    with pytest.raises(CallTimeoutError, match=r"did not respond within 0.2 s \(nvmlDeviceGetUUID\)"):
        process.call(ONE, 0.2, "nvmlDeviceGetUUID", gpu)
    assert process.is_hung(ONE) and not process.is_hung(OTHER) and process.hung_for_s() >= 0.2
    assert process.call(OTHER, 60, "nvmlDeviceGetName", gpu)
    with pytest.raises(CallTimeoutError, match="an earlier call to NVML about"):
        process.call(ONE, 60, "nvmlDeviceGetUUID", gpu)
    inject.clear(root)
    eventually(lambda: not process.is_hung(ONE))
    assert process.call(ONE, DEADLINE_S, "nvmlDeviceGetUUID", gpu) and process.hung_for_s() == 0


def test_a_slow_gpu_delays_no_other(process: NvmlWorker, root: Path) -> None:
    gpu = handle(process)
    inject.hang(root, "nvmlDeviceGetUUID")
    slow = threading.Thread(target=process.call, args=(ONE, 60, "nvmlDeviceGetUUID", gpu))
    slow.start()
    eventually(lambda: process.busy)
    for _ in range(5):
        process.call(OTHER, 60, "nvmlDeviceGetName", gpu)
    assert slow.is_alive()
    inject.clear(root)
    slow.join()


def test_a_call_waits_for_its_lane_until_its_deadline(process: NvmlWorker, root: Path) -> None:
    gpu = handle(process)
    inject.hang(root, "nvmlDeviceGetUUID")
    slow = threading.Thread(target=process.call, args=(ONE, 600, "nvmlDeviceGetUUID", gpu))
    slow.start()
    eventually(lambda: process.busy)
    with pytest.raises(CallTimeoutError, match="did not come to nvmlDeviceGetName"):
        process.call(ONE, 0.1, "nvmlDeviceGetName", gpu)
    assert not process.is_hung(ONE), "the call before it is in time"
    inject.clear(root)
    slow.join()
    assert process.call(ONE, DEADLINE_S, "nvmlDeviceGetName", gpu)


@tiers.PATIENCE
def test_a_call_that_had_to_wait_for_its_turn_has_its_whole_time(process: NvmlWorker, root: Path) -> None:
    gpu = handle(process)
    inject.delay(root, "nvmlDeviceGetUUID", 3000)
    first = threading.Thread(target=process.call, args=(ONE, DEADLINE_S, "nvmlDeviceGetUUID", gpu))
    first.start()
    eventually(lambda: process.busy)
    # Almost 3 s until it is its turn, and 3 s for itself.
    assert process.call(ONE, 5.5, "nvmlDeviceGetUUID", gpu)
    assert not process.is_hung(ONE)
    first.join()


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_process_that_dies_ends_its_calls_and_nothing_else(
    process: NvmlWorker, root: Path, number: signal.Signals
) -> None:
    gpu = handle(process)
    inject.hang(root, "nvmlDeviceGetUUID")
    failed: list[Exception] = []

    def ask() -> None:
        try:
            process.call(ONE, 30, "nvmlDeviceGetUUID", gpu)
        except CallTimeoutError as error:
            failed.append(error)

    waiting = threading.Thread(target=ask)
    waiting.start()
    eventually(lambda: process.busy)
    os.kill(process.pid, number)
    waiting.join(60)
    assert not waiting.is_alive()
    assert [str(error) for error in failed] == [f"NVML's process was ended by {number.name} (in nvmlDeviceGetUUID)"]
    with pytest.raises(WorkerExitedError, match=number.name):
        process.call(OTHER, DEADLINE_S, "nvmlDeviceGetUUID", gpu)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)  # it is not a zombie either


def test_a_handle_of_a_process_before_it_is_refused(process: NvmlWorker, library: Path) -> None:
    gpu = handle(process)
    process.close()
    successor = NvmlWorker(pynvml, library, 2)
    successor.call("all", DEADLINE_S, "nvmlInitWithFlags", 0)
    handle(successor)
    with pytest.raises(StaleHandleError, match="nvmlDeviceGetUUID"):
        successor.call(ONE, DEADLINE_S, "nvmlDeviceGetUUID", gpu)
    successor.close()


def test_closing_ends_it_although_a_call_hangs(process: NvmlWorker, root: Path) -> None:
    gpu = handle(process)
    inject.hang(root, "nvmlDeviceGetUUID")
    with pytest.raises(CallTimeoutError):
        process.call(ONE, 0.1, "nvmlDeviceGetUUID", gpu)
    process.close()
    eventually(lambda: process.ended)  # a kernel that is late ends it when it can
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_library_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    damaged = tmp_path / "libnvidia-ml.so.1"
    damaged.write_bytes(b"no library")
    process = NvmlWorker(pynvml, damaged, 1)
    with pytest.raises(LibraryNotFoundError, match=str(damaged)):
        process.call("all", DEADLINE_S, "nvmlInitWithFlags", 0)
    process.close()


def test_it_outlives_no_agent(library: Path) -> None:
    code = (
        "import os, pynvml, sys, pathlib; from dra_agent.nvml.client import NvmlWorker;"
        "made = NvmlWorker(pynvml, pathlib.Path(sys.argv[1]), 1);"
        "print(made.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(library)], capture_output=True, text=True, timeout=120)
    pid = int(run.stdout)

    def is_gone() -> bool:
        try:
            return (Path(f"/proc/{pid}/stat")).read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    eventually(is_gone)


def test_signals_for_the_agent_do_not_end_it(process: NvmlWorker) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(process.pid, number)
    # The kernel delivers signals before the process continues, and so before it answers.
    assert handle(process) and not process.ended


def test_starts_for_an_agent_that_only_its_launcher_can_find(library: Path) -> None:
    # `make install` puts the package where no interpreter looks by itself; its launcher adds the folder to sys.path.
    base = Path(sys.base_prefix, "bin", "python3")
    program = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "import pynvml\n"
        "from dra_agent.nvml.client import NvmlWorker\n"
        "made = NvmlWorker(pynvml, Path(sys.argv[1]), 1)\n"
        "print(made.call('all', 60, 'nvmlInitWithFlags', 0))\n"
        "made.close()\n"
    )
    done = subprocess.run(
        [base, "-I", "-c", program, library, *filter(None, sys.path), PACKAGE.parent],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
