"""NVIDIA's library crashes once, repeatedly, or hangs permanently: the inventory meanwhile, and its return."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dra_simulate
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Device
from dra_agent.inventory.nvidia.nvml_client import (
    CallTimeoutError,
    NvmlClient,
    NvmlError,
    StaleHandleError,
    WorkerExitedError,
    acquire,
)
from dra_agent.inventory.settings import InventorySettings
from dra_agent.nvml import client
from dra_agent.nvml.client import NvmlWorker
from dra_agent.topology import scan
from dra_simulate import inject
from eventually import DEADLINE_S, eventually

BUS = b"00000000:00:04.0"
GPU = "gpu-0000-00-04-0"


@pytest.fixture(scope="module")
def vm(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return dra_simulate.build("vm-1gpu", tmp_path_factory.mktemp("host") / "vm")


@pytest.fixture
def root(vm: Host) -> Iterator[Path]:
    yield vm.sysfs.parent
    inject.clear(vm.sysfs.parent)


@pytest.fixture
def nvml(vm: Host, root: Path) -> Iterator[NvmlClient]:
    made = acquire(vm.nvml_library, DEADLINE_S)
    yield made
    made.close()


@pytest.fixture
def collector(vm: Host, nvml: NvmlClient) -> Iterator[Collector]:
    made = Collector(vm, InventorySettings(nvml_timeout=DEADLINE_S))
    yield made
    made.close()


def gpu(collector: Collector, host: Host) -> Device:
    device = collector.collect(scan(host)).device(GPU)
    assert device is not None
    return device


def crash(nvml: NvmlClient) -> None:
    pid = nvml.pid
    assert pid is not None
    os.kill(pid, signal.SIGSEGV)
    eventually(lambda: nvml.pid is None)


def test_inventory_and_set_up_have_one_process(vm: Host, nvml: NvmlClient, collector: Collector) -> None:
    gpu(collector, vm)
    again = acquire(vm.nvml_library, 1.0)
    assert again is nvml and again.pid is not None
    pid = nvml.pid
    again.close()
    assert nvml.pid == pid, "others use it"


def test_a_crash_costs_at_most_one_scan_and_events_resume(
    vm: Host, root: Path, nvml: NvmlClient, collector: Collector
) -> None:
    before = gpu(collector, vm)
    first = nvml.pid
    crash(nvml)
    assert collector.faults() == []
    after = gpu(collector, vm)
    assert after.to_api() == before.to_api() and after.health == "healthy"
    assert nvml.pid not in (None, first)
    inject.xid(root, "0000:00:04.0", 94)
    assert [fault.cause for fault in collector.faults()] == ["xid-94"]


def test_a_crash_during_a_scan_keeps_the_last_values(
    vm: Host, root: Path, nvml: NvmlClient, collector: Collector
) -> None:
    before = gpu(collector, vm)
    inject.kill(root, "nvmlDeviceGetBrand")
    during = gpu(collector, vm)
    assert during.to_api() == before.to_api()
    assert during.health == "unmonitored"
    inject.clear(root)
    assert gpu(collector, vm).health == "healthy"


def test_a_library_that_crashes_repeatedly_is_started_less_and_less_often(
    vm: Host, nvml: NvmlClient, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT_S", 3000.0)
    monkeypatch.setattr(client, "MAX_WAIT_S", 3000.0)
    gpu(collector, vm)
    crash(nvml)
    assert gpu(collector, vm).health == "healthy"
    crash(nvml)
    inventory = collector.collect(scan(vm))
    device = inventory.device(GPU)
    assert device is not None and device.health == "unmonitored"
    assert device.capacity["memory"], "what is known of it stays published"
    assert "failed repeatedly" in str(inventory.problems[0])
    with pytest.raises(WorkerExitedError, match=r"it is started again in (3000|2\d{3}) s"):
        nvml.start()
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.0)
    eventually(lambda: gpu(collector, vm).health == "healthy")


def test_a_handle_of_before_a_crash_has_no_meaning(nvml: NvmlClient) -> None:
    nvml.start()
    handle = nvml.call("nvmlDeviceGetHandleByPciBusId", BUS)
    crash(nvml)
    with pytest.raises(WorkerExitedError):
        nvml.call("nvmlDeviceGetUUID", handle)
    generation = nvml.generation
    nvml.start()
    assert nvml.generation == generation + 1
    with pytest.raises(StaleHandleError):
        nvml.call("nvmlDeviceGetUUID", handle)
    assert not issubclass(StaleHandleError, NvmlError), "a fact is not unknown because its question came too late"


def test_a_call_that_never_comes_back_ends_with_its_process(
    root: Path, nvml: NvmlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    out_for, hung_for_s = [0.0], NvmlWorker.hung_for_s
    monkeypatch.setattr(NvmlWorker, "hung_for_s", lambda process: out_for[0] if hung_for_s(process) else 0.0)
    nvml.start()
    handle = nvml.call("nvmlDeviceGetHandleByPciBusId", BUS)
    first = nvml.pid
    inject.hang(root, "nvmlDeviceGetUUID")
    with pytest.raises(CallTimeoutError):
        nvml.call("nvmlDeviceGetUUID", handle, about="gpu", timeout=0.2)
    out_for[0] = client.HANG_TIMEOUT_S - 1
    nvml.start()
    assert nvml.is_hung("gpu") and nvml.pid == first, "it may come back"
    out_for[0] = client.HANG_TIMEOUT_S
    nvml.start()
    assert not nvml.is_hung("gpu") and nvml.pid != first
    handle = nvml.call("nvmlDeviceGetHandleByPciBusId", BUS)
    with pytest.raises(CallTimeoutError):
        nvml.call("nvmlDeviceGetUUID", handle, about="gpu", timeout=0.2)
    second = nvml.pid
    nvml.start()
    assert nvml.pid == second, "the second time it is borne for longer"
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.0)
    out_for[0] = 2 * client.HANG_TIMEOUT_S
    nvml.start()
    assert nvml.pid != second


def test_letting_go_waits_for_calls_that_are_in_time(
    root: Path, nvml: NvmlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.start()
    handle = nvml.call("nvmlDeviceGetHandleByPciBusId", BUS)
    inject.delay(root, "nvmlDeviceGetUUID", 300)
    is_out, send = threading.Event(), NvmlWorker.send

    def sent(process: NvmlWorker, *arguments: Any) -> Any:
        call = send(process, *arguments)
        is_out.set()
        return call

    monkeypatch.setattr(NvmlWorker, "send", sent)
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(nvml.call("nvmlDeviceGetUUID", handle, about="gpu")))
    asking.start()
    assert is_out.wait(DEADLINE_S)
    nvml.stop()
    asking.join()
    assert len(answers) == 1 and nvml.pid is None
    with pytest.raises(WorkerExitedError, match="not started"):
        nvml.call("nvmlDeviceGetName", handle)
