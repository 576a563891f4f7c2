"""From the simulated NVML to slices: an XID taints the GPU, a recovery removes the taint, and hangs are harmless."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dra_simulate
from dra_agent.agent.device_state import DeviceState
from dra_agent.clock import STEADY
from dra_agent.health.monitor import Monitor
from dra_agent.health.settings import HealthSettings
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_agent.inventory.settings import InventorySettings
from dra_agent.nvml import client
from dra_agent.topology import LiveTopology, Topology
from dra_simulate import inject
from eventually import eventually

DRIVER = "dra-agent.internal"
GPU = "gpu-0000-00-04-0"
SETTINGS = HealthSettings(recovery_seconds=3600, event_seconds=3600)
"""Longer than a test: only the test makes this time pass."""
LONG_TIMEOUT_S = 60.0
"""For a library that answers: on a slow machine it must not count as hanging."""
HANGS_S = 0.3


class Clock:
    """The time of day, plus the time that the test skips."""

    def __init__(self) -> None:
        self._passed_s = 0.0

    def __call__(self) -> float:
        return STEADY.unix() + self._passed_s

    def skip_recovery(self) -> None:
        self._passed_s += 3601


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    dra_simulate.build("vm-1gpu", tmp_path / "host")
    return tmp_path / "host"


@pytest.fixture
def hardware(root: Path, clock: Clock) -> Iterator[DeviceState]:
    host = dra_simulate.build("vm-1gpu", root)
    state = DeviceState(
        host,
        InventorySettings(nvml_timeout=LONG_TIMEOUT_S),
        node="node-a",
        driver=DRIVER,
        monitor=Monitor(SETTINGS, DRIVER, clock=clock),
    )
    yield state
    inject.clear(root)
    state.close()


def taints(hardware: DeviceState) -> list[dict[str, Any]]:
    (device,) = [
        device for slice_ in hardware.slices() for device in slice_["spec"]["devices"] if device["name"] == GPU
    ]
    return list(device.get("taints", []))


def test_an_xid_taints_the_gpu_until_it_has_recovered(hardware: DeviceState, root: Path, clock: Clock) -> None:
    assert taints(hardware) == [] and not hardware.poll_events()
    before = int(clock())
    inject.xid(root, GPU.removeprefix("gpu-").replace("-", ":", 2).replace("-", "."), 95)
    assert hardware.poll_events().changed == (GPU,)
    (taint,) = taints(hardware)
    assert (taint["key"], taint["effect"]) == (f"{DRIVER}/xid-95", "NoSchedule")
    assert before <= datetime.fromisoformat(taint["timeAdded"]).timestamp() <= clock()
    rows = {row.device: row for row in hardware.published_health.rows()}
    assert rows[GPU].health == "unhealthy" and "XID 95" in rows[GPU].message
    assert not hardware.poll_events(), "no further change"
    clock.skip_recovery()
    assert hardware.poll_events()
    assert taints(hardware) == []
    assert {row.health for row in hardware.published_health.rows()} == {"healthy"}


def test_a_lost_gpu_keeps_its_taints_until_it_has_recovered(hardware: DeviceState, root: Path, clock: Clock) -> None:
    uuid = hardware.inventory.devices[0].identity["uuid"]
    inject.fail(root, None, 15, uuid)
    inject.xid(root, uuid, 79)
    assert hardware.poll_events()
    assert {taint["key"] for taint in taints(hardware)} == {f"{DRIVER}/gpu-lost", f"{DRIVER}/xid-79"}
    assert {taint["effect"] for taint in taints(hardware)} == {"NoExecute"}
    inject.clear(root)
    eventually(lambda: recovered(hardware, clock))


def recovered(hardware: DeviceState, clock: Clock) -> bool:
    """Refresh twice, with the recovery time in between."""
    hardware.refresh([], rescan=False)
    clock.skip_recovery()
    hardware.refresh([], rescan=False)
    return not taints(hardware)


def test_a_hanging_library_makes_health_unknown_without_no_schedule(
    hardware: DeviceState, root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject.hang(root, None)
    shorten_timeout(hardware, monkeypatch)
    hardware.refresh([], rescan=False)
    assert not hardware.poll_events()
    assert [(taint["key"], taint["effect"]) for taint in taints(hardware)] == [(f"{DRIVER}/unmonitored", "None")]
    rows = {row.device: row.health for row in hardware.published_health.rows()}
    assert rows[GPU] == "unknown"
    inject.clear(root)
    monkeypatch.undo()
    eventually(lambda: recovered(hardware, clock) and hardware.inventory.devices[0].health == "healthy")


def shorten_timeout(hardware: DeviceState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeout of NVML calls from now on; earlier calls had the time of a slow machine."""
    library = acquire(hardware.host.nvml_library, LONG_TIMEOUT_S)
    monkeypatch.setattr(library, "timeout_s", HANGS_S)
    library.close()


def test_a_setup_failure_taints_its_gpu(hardware: DeviceState, clock: Clock) -> None:
    assert hardware.set_setup_failures({GPU: "its MPS daemon exited"}).changed == (GPU,)
    (taint,) = taints(hardware)
    assert (taint["key"], taint["effect"]) == (f"{DRIVER}/sharing-down", "NoSchedule")
    # A refresh does not remove the failure, and a repeated report changes nothing.
    assert not hardware.refresh([], rescan=True)
    assert not hardware.set_setup_failures({GPU: "its MPS daemon exited"})
    assert taints(hardware) == [taint]
    hardware.set_setup_failures({})

    clock.skip_recovery()
    hardware.poll_events()
    assert taints(hardware) == []


def test_a_setup_failure_of_an_absent_gpu_is_ignored(hardware: DeviceState) -> None:
    assert not hardware.set_setup_failures({"gpu-0000-99-00-0": "its MPS daemon exited"})
    assert taints(hardware) == []


@pytest.mark.parametrize(("setting", "effect"), [("tell", "None"), ("NoSchedule", "NoSchedule")])
@pytest.mark.parametrize("failure", ["hangs", "crashes"])
def test_a_failing_library_taints_as_unmonitored(
    root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, failure: str, setting: str, effect: str
) -> None:
    host = dra_simulate.build("vm-1gpu", root)
    settings = msgspec.structs.replace(SETTINGS, unmonitored=setting)
    hardware = DeviceState(
        host,
        InventorySettings(nvml_timeout=LONG_TIMEOUT_S),
        node="node-a",
        driver=DRIVER,
        monitor=Monitor(settings, DRIVER, clock=clock),
    )
    before = [device.to_api() for device in hardware.inventory.devices]
    library = acquire(host.nvml_library, LONG_TIMEOUT_S)
    if failure == "hangs":
        inject.hang(root, None)
        shorten_timeout(hardware, monkeypatch)
        hardware.refresh([], rescan=False)
    else:
        monkeypatch.setattr(client, "FIRST_WAIT_S", LONG_TIMEOUT_S)
        # After the second crash the library is not restarted at once.
        for _ in range(2):
            hardware.refresh([], rescan=False)
            pid = library.pid
            assert pid is not None
            os.kill(pid, signal.SIGSEGV)
            eventually(lambda: library.pid is None)
        hardware.refresh([], rescan=False)
    assert [(taint["key"], taint["effect"]) for taint in taints(hardware)] == [(f"{DRIVER}/unmonitored", effect)]
    for device, known in zip(hardware.inventory.devices, before, strict=True):
        assert {**device.to_api(), "taints": []} == {**known, "taints": []}, "the other fields of the device stay"
    inject.clear(root)
    monkeypatch.undo()
    eventually(lambda: recovered(hardware, clock))
    assert hardware.inventory.devices[0].health == "healthy"
    library.close()
    hardware.close()


def test_after_a_library_crash_events_are_read_again_without_a_refresh(
    hardware: DeviceState, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library = acquire(hardware.host.nvml_library, LONG_TIMEOUT_S)

    def restarted(before: int) -> bool:
        return hardware.poll_events() is not None and library.pid not in (None, before)

    try:
        # After the second crash in a row the restart has a delay, which no refresh shortens.
        for number in (95, 94):
            first = library.pid
            assert first is not None
            os.kill(first, signal.SIGSEGV)
            eventually(lambda: library.pid is None)
            eventually(partial(restarted, first))
            inject.xid(root, "0000:00:04.0", number)
            eventually(hardware.poll_events)
            keys = {taint["key"] for taint in taints(hardware)}
            assert f"{DRIVER}/xid-{number}" in keys
        unknown = [record for record in caplog.records if "XIDs of the time before" in record.message]
        assert len(unknown) == 2 and all(0 <= float(vars(record)["seconds"]) < 30 for record in unknown)
    finally:
        library.close()


def test_an_idle_library_causes_no_refresh(hardware: DeviceState, monkeypatch: pytest.MonkeyPatch) -> None:
    refreshes: list[bool] = []
    monkeypatch.setattr(hardware, "refresh", lambda events, *, rescan: refreshes.append(rescan))
    for _ in range(3):
        hardware.poll_events()
    assert refreshes == [], "the library runs: no refresh is needed"


def test_no_event_and_no_scan_computes_distances(hardware: DeviceState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number grows with the square of the devices."""
    requested: list[bool] = []
    snapshot = LiveTopology.snapshot

    def record(topology: LiveTopology, *, distances: bool = False) -> Topology:
        requested.append(distances)
        return snapshot(topology, distances=distances)

    monkeypatch.setattr(LiveTopology, "snapshot", record)
    hardware.refresh([], rescan=False)
    hardware.refresh([], rescan=True)
    assert requested == [False, False]


def test_slices_that_are_not_needed_are_not_encoded(root: Path) -> None:
    hardware = DeviceState(
        dra_simulate.build("vm-1gpu", root),
        InventorySettings(nvml_timeout=LONG_TIMEOUT_S),
        node="node-a",
        driver=DRIVER,
        monitor=Monitor(SETTINGS, DRIVER),
        computes_slices=False,
    )
    try:
        assert hardware.inventory.device(GPU) is not None
        assert hardware.slices() == []
    finally:
        hardware.close()
