"""NVML that needs seconds for each GPU, as real drivers do without persistence mode."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from dra_agent import simulate
from dra_agent.agent.device_state import DeviceState
from dra_agent.device_setup.mig import driver as mig_driver
from dra_agent.health.monitor import Monitor
from dra_agent.health.settings import HealthSettings
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector, collect
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.nvidia import gpu_start
from dra_agent.inventory.nvidia.nvml_client import NvmlClient, acquire
from dra_agent.inventory.settings import InventorySettings
from dra_agent.nvml.client import CallTimeoutError, NvmlWorker, WorkerExitedError
from dra_agent.simulate import inject, nvml
from dra_agent.topology import scan
from eventually import DEADLINE_S, eventually
from inventory.hurry import hurry

DRIVER = "dra-agent.internal"
LOOK_UP = "nvmlDeviceGetHandleByPciBusId"
B200_START_S = 4.3
"""The slowest initialization of a B200 that was measured (tinfoilsh/cvmimage#363); eight take as many times that."""
SHIPPED = InventorySettings()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return simulate.build("dgx-h100", tmp_path / "dgx")


@pytest.fixture
def root(host: Host) -> Iterator[Path]:
    yield host.sysfs.parent
    inject.clear(host.sysfs.parent)


@pytest.fixture
def deadlines(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The deadline in seconds that each function was called with, at most."""
    found: dict[str, float] = {}
    call = NvmlWorker.call

    def recorded(process: NvmlWorker, lane: str, timeout: float, name: str, *arguments: object) -> object:
        found[name] = max(timeout, found.get(name, 0.0))
        return call(process, lane, timeout, name, *arguments)

    monkeypatch.setattr(NvmlWorker, "call", recorded)
    return found


def gpus(inventory: Inventory) -> dict[str, str]:
    return {device.name: device.health for device in inventory.family("gpu")}


def test_shipped_deadlines_suffice_for_eight_slow_gpus(host: Host, root: Path, deadlines: dict[str, float]) -> None:
    inject.latency(root, init_ms_per_gpu=2, gpu_start_ms=20)
    inventory = collect(host, scan(host), SHIPPED)
    assert set(gpus(inventory).values()) == {"healthy"}
    assert len(inventory.family("gpu")) == 8
    assert {device.capacity["memory"].value for device in inventory.family("gpu")} == {"81559Mi"}
    for name in ("nvmlInitWithFlags", LOOK_UP):
        assert deadlines[name] >= 2 * 8 * B200_START_S, f"{name} may initialize all GPUs"
    assert deadlines["nvmlDeviceGetMemoryInfo"] <= SHIPPED.nvml_timeout * 4


def test_a_host_with_one_gpu_waits_no_longer_than_before(tmp_path: Path, deadlines: dict[str, float]) -> None:
    host = simulate.build("vm-1gpu", tmp_path / "vm")
    collect(host, scan(host), SHIPPED)
    assert deadlines["nvmlInitWithFlags"] == deadlines[LOOK_UP] == SHIPPED.nvml_timeout * 4


@pytest.mark.parametrize("function", ["nvmlInit", LOOK_UP])
def test_other_devices_do_not_wait_for_a_slow_start(
    host: Host, root: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    # The library takes longer than any scan waits for it.
    monkeypatch.setattr(gpu_start.GpuStart, "__init__", _waits_not(gpu_start.GpuStart.__init__))
    library = acquire(host.nvml_library, DEADLINE_S)
    if function == LOOK_UP:
        # It runs: otherwise the end of its own start would be the news of any later poll.
        library.start()
    inject.hang(root, function)
    hardware = DeviceState(
        host,
        InventorySettings(nvml_timeout=DEADLINE_S),
        node="node-a",
        driver=DRIVER,
        monitor=Monitor(HealthSettings(), DRIVER),
    )
    try:
        first = hardware.inventory
        assert len(first.family("nic")) == 10
        assert set(gpus(first).values()) == {"unmonitored"}, "they are published: prepared claims continue"
        taints = {(taint.key, taint.effect) for device in first.family("gpu") for taint in device.taints}
        assert taints == {(f"{DRIVER}/starting", "NoSchedule")}, "and new claims wait until they are described"
        assert {device.identity["minor"] for device in first.family("gpu")} == {str(n) for n in range(8)}
        assert any("still initializes" in problem.message for problem in first.problems)
        assert not hardware.poll_events(), "nothing is new"
        inject.clear(root)

        def described() -> bool:
            hardware.poll_events()
            return set(gpus(hardware.inventory).values()) == {"healthy"}

        eventually(described)
        assert {device.taints for device in hardware.inventory.family("gpu")} == {()}, "at once, not after a recovery"
        assert {device.capacity["memory"].value for device in hardware.inventory.family("gpu")} == {"81559Mi"}
    finally:
        hardware.close()
        library.close()


def _waits_not(init: Callable[..., None]) -> Callable[..., None]:
    def made(start: gpu_start.GpuStart, library: NvmlClient, wait_s: float) -> None:
        init(start, library, 0.0)

    return made


def test_one_gpu_that_hangs_at_its_initialization_delays_no_other(
    host: Host, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_start.GpuStart, "__init__", _waits_not(gpu_start.GpuStart.__init__))
    inject.hang(root, LOOK_UP, nvml.read(root / "lib").devices[2].uuid)
    collector = Collector(host, InventorySettings(nvml_timeout=DEADLINE_S))

    def starting() -> list[str]:
        found = collector.collect(scan(host)).family("gpu")
        return [device.name for device in found if device.issues]

    try:
        eventually(lambda: starting() == ["gpu-0000-52-00-0"])
        inject.clear(root)
        eventually(lambda: starting() == [])
    finally:
        collector.close()


def test_a_library_that_starts_again_slowly_leaves_known_gpus_as_they_are(
    host: Host, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_start.GpuStart, "__init__", _waits_not(gpu_start.GpuStart.__init__))
    hardware = DeviceState(
        host,
        InventorySettings(nvml_timeout=DEADLINE_S),
        node="node-a",
        driver=DRIVER,
        monitor=Monitor(HealthSettings(), DRIVER),
    )

    def described() -> bool:
        hardware.poll_events()
        return set(gpus(hardware.inventory).values()) == {"healthy"}

    try:
        eventually(described)
        before = [device.to_api() for device in hardware.inventory.devices]
        library = acquire(host.nvml_library, 1.0)
        inject.hang(root, LOOK_UP)
        library.stop()
        library.close()
        hardware.refresh([], rescan=False)
        assert [device.to_api() for device in hardware.inventory.devices] == before
        assert set(gpus(hardware.inventory).values()) == {"healthy"}
        inject.clear(root)
    finally:
        hardware.close()


def test_a_start_after_the_close_starts_no_process(host: Host) -> None:
    library = NvmlClient(host.nvml_library, DEADLINE_S)
    library.close()
    try:
        with pytest.raises(WorkerExitedError, match="closed"):
            library.start()
        assert library.pid is None
    finally:
        library.stop()


def test_a_start_that_hangs_does_not_keep_the_library_open(host: Host, root: Path) -> None:
    library = NvmlClient(host.nvml_library, 0.3)
    library.expect(1_000_000)
    assert library.start_timeout_s > 100 * DEADLINE_S
    inject.hang(root, "nvmlInit")
    failed: list[Exception] = []

    def start() -> None:
        try:
            library.start()
        except CallTimeoutError as error:
            failed.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    eventually(lambda: library.pid is not None)
    library.close()
    starting.join(DEADLINE_S)
    assert failed and library.pid is None, "the close does not wait until the start times out"


def test_reads_take_longer_while_mig_instances_change(host: Host, deadlines: dict[str, float]) -> None:
    address = "0000:1b:00.0"
    library = acquire(host.nvml_library, SHIPPED.nvml_timeout)
    try:
        gpu = mig_driver.MigDriver(library, host, address, {})
        gpu.mode()
        assert deadlines["nvmlDeviceGetMigMode"] == SHIPPED.nvml_timeout
        gpu.set_mode(True)
        gpu.mode()
        assert deadlines["nvmlDeviceGetMigMode"] == SHIPPED.nvml_timeout * 4
    finally:
        library.close()


def test_a_gpu_that_a_set_up_changes_keeps_its_health(host: Host, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector(host, InventorySettings(nvml_timeout=DEADLINE_S))
    try:
        before = collector.collect(scan(host))
        library = acquire(host.nvml_library, DEADLINE_S)
        handle = library.call(LOOK_UP, b"00000000:1B:00.0", about="0000:1b:00.0")
        inject.hang(root, "nvmlDeviceSetPersistenceMode")
        changing = threading.Thread(
            target=lambda: library.call("nvmlDeviceSetPersistenceMode", handle, 1, about="0000:1b:00.0")
        )
        changing.start()
        eventually(lambda: library.is_busy)
        hurry(monkeypatch, lambda lane: lane == "0000:1b:00.0")
        during = collector.collect(scan(host))
        assert msgspec.structs.replace(during.devices[0], observed=True) == before.devices[0]
        assert not during.device("gpu-0000-1b-00-0").observed  # type: ignore[union-attr]
        assert gpus(during) == gpus(before)
        monkeypatch.undo()
        inject.clear(root)
        changing.join(DEADLINE_S)
        library.close()
    finally:
        collector.close()
