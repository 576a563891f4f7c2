"""From the simulated NVML to slices: an XID taints the GPU, a recovery frees it, and a hang harms nobody."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent import simulate
from dra_agent.agent.device_state import DeviceState
from dra_agent.clock import STEADY
from dra_agent.health import HealthSettings, Monitor
from dra_agent.inventory import InventorySettings
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_agent.nvml import client
from dra_agent.simulate import inject
from eventually import eventually

DRIVER = "dra-agent.internal"
GPU = "gpu-0000-00-04-0"
SETTINGS = HealthSettings(recovery_seconds=3600, event_seconds=3600)
"""Longer than a test: what has passed, has passed because the test says so."""
PATIENT_S = 60.0
"""For a library that answers: none on a slow machine counts as one that hangs."""
HANGS_S = 0.3


class Clock:
    """The time of day, and what the test lets pass."""

    def __init__(self) -> None:
        self._passed_s = 0.0

    def __call__(self) -> float:
        return STEADY.unix() + self._passed_s

    def pass_(self) -> None:
        self._passed_s += 3601


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    simulate.build("vm-1gpu", tmp_path / "host")
    return tmp_path / "host"


@pytest.fixture
def hardware(root: Path, clock: Clock) -> Iterator[DeviceState]:
    host = simulate.build("vm-1gpu", root)
    made = DeviceState(
        host,
        InventorySettings(nvml_timeout=PATIENT_S),
        node="node-a",
        driver=DRIVER,
        monitor=Monitor(SETTINGS, DRIVER, clock=clock),
    )
    yield made
    inject.clear(root)
    made.close()


def taints(hardware: DeviceState) -> list[dict[str, Any]]:
    (device,) = [d for s in hardware.slices() for d in s["spec"]["devices"] if d["name"] == GPU]
    return list(device.get("taints", []))


def test_an_xid_taints_the_gpu_until_it_has_passed(hardware: DeviceState, root: Path, clock: Clock) -> None:
    assert taints(hardware) == [] and not hardware.poll_events()
    before = int(clock())
    inject.xid(root, GPU.removeprefix("gpu-").replace("-", ":", 2).replace("-", "."), 95)
    assert hardware.poll_events().changed == (GPU,)
    (taint,) = taints(hardware)
    assert (taint["key"], taint["effect"]) == (f"{DRIVER}/xid-95", "NoSchedule")
    assert before <= datetime.fromisoformat(taint["timeAdded"]).timestamp() <= clock()
    rows = {row.device: row for row in hardware.board.rows()}
    assert rows[GPU].health == "unhealthy" and "XID 95" in rows[GPU].message
    assert not hardware.poll_events(), "nothing is new"
    clock.pass_()
    assert hardware.poll_events()
    assert taints(hardware) == []
    assert {row.health for row in hardware.board.rows()} == {"healthy"}


def test_a_lost_gpu_is_seen_with_its_xid_and_not_by_the_next_look(
    hardware: DeviceState, root: Path, clock: Clock
) -> None:
    uuid = hardware.inventory.devices[0].identity["uuid"]
    inject.fail(root, None, 15, uuid)
    inject.xid(root, uuid, 79)
    assert hardware.poll_events()
    assert {taint["key"] for taint in taints(hardware)} == {f"{DRIVER}/gpu-lost", f"{DRIVER}/xid-79"}
    assert {taint["effect"] for taint in taints(hardware)} == {"NoExecute"}
    inject.clear(root)
    eventually(lambda: recovered(hardware, clock))


def recovered(hardware: DeviceState, clock: Clock) -> bool:
    """Look twice, with the time of a recovery in between."""
    hardware.refresh([], rescan=False)
    clock.pass_()
    hardware.refresh([], rescan=False)
    return not taints(hardware)


def test_a_library_that_hangs_makes_devices_unknown_and_keeps_nobody_away(
    hardware: DeviceState, root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject.hang(root, None)
    give_up_soon(hardware, monkeypatch)
    began = time.monotonic()
    hardware.refresh([], rescan=False)
    assert not hardware.poll_events()
    assert time.monotonic() - began < 50
    assert [(taint["key"], taint["effect"]) for taint in taints(hardware)] == [(f"{DRIVER}/unmonitored", "None")]
    rows = {row.device: row.health for row in hardware.board.rows()}
    assert rows[GPU] == "unknown"
    inject.clear(root)
    monkeypatch.undo()
    eventually(lambda: recovered(hardware, clock) and hardware.inventory.devices[0].health == "healthy")


def give_up_soon(hardware: DeviceState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have calls that hang given up in a moment, from now on: those before had the time of a slow machine."""
    library = acquire(hardware.host.nvml_library, PATIENT_S)
    monkeypatch.setattr(library, "_timeout", HANGS_S)
    library.close()


def test_what_is_set_up_on_a_gpu_and_does_not_work_taints_it(hardware: DeviceState, clock: Clock) -> None:
    assert hardware.set_setup_failures({GPU: "its MPS daemon exited"}).changed == (GPU,)
    (taint,) = taints(hardware)
    assert (taint["key"], taint["effect"]) == (f"{DRIVER}/sharing-down", "NoSchedule")
    # A look at the hardware does not make it well, and being told twice changes nothing.
    assert not hardware.refresh([], rescan=True)
    assert not hardware.set_setup_failures({GPU: "its MPS daemon exited"})
    assert taints(hardware) == [taint]
    hardware.set_setup_failures({})

    clock.pass_()
    hardware.poll_events()
    assert taints(hardware) == []


def test_a_report_of_a_gpu_that_is_gone_is_nobodys(hardware: DeviceState) -> None:
    assert not hardware.set_setup_failures({"gpu-0000-99-00-0": "its MPS daemon exited"})
    assert taints(hardware) == []


@pytest.mark.parametrize(("wanted", "effect"), [("tell", "None"), ("NoSchedule", "NoSchedule")])
@pytest.mark.parametrize("how", ["hangs", "crashes"])
def test_a_library_that_fails_taints_as_unmonitored(
    root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, how: str, wanted: str, effect: str
) -> None:
    host = simulate.build("vm-1gpu", root)
    settings = msgspec.structs.replace(SETTINGS, unmonitored=wanted)
    hardware = DeviceState(
        host,
        InventorySettings(nvml_timeout=PATIENT_S),
        node="node-a",
        driver=DRIVER,
        monitor=Monitor(settings, DRIVER, clock=clock),
    )
    before = [device.to_api() for device in hardware.inventory.devices]
    library = acquire(host.nvml_library, PATIENT_S)
    if how == "hangs":
        inject.hang(root, None)
        give_up_soon(hardware, monkeypatch)
        hardware.refresh([], rescan=False)
    else:
        monkeypatch.setattr(client, "FIRST_WAIT_S", PATIENT_S)
        # The second crash is one too many to start it again at once.
        for _ in range(2):
            hardware.refresh([], rescan=False)
            pid = library.pid
            assert pid is not None
            os.kill(pid, signal.SIGSEGV)
            eventually(lambda: library.pid is None)
        hardware.refresh([], rescan=False)
    assert [(taint["key"], taint["effect"]) for taint in taints(hardware)] == [(f"{DRIVER}/unmonitored", effect)]
    for device, known in zip(hardware.inventory.devices, before, strict=True):
        assert {**device.to_api(), "taints": []} == {**known, "taints": []}, "what is known of it stays"
    inject.clear(root)
    monkeypatch.undo()
    eventually(lambda: recovered(hardware, clock))
    assert hardware.inventory.devices[0].health == "healthy"
    library.close()
    hardware.close()


def test_after_a_crash_of_the_library_events_are_heard_at_the_next_question_and_not_at_the_next_look(
    hardware: DeviceState, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library = acquire(hardware.host.nvml_library, PATIENT_S)

    def restarted(before: int) -> bool:
        return hardware.poll_events() is not None and library.pid not in (None, before)

    try:
        # The second crash in a row is answered with a pause, and the end of that is not waited for by looks either.
        for number in (95, 94):
            first = library.pid
            assert first is not None
            os.kill(first, signal.SIGSEGV)
            eventually(lambda: library.pid is None)
            eventually(partial(restarted, first))
            inject.xid(root, "0000:00:04.0", number)
            eventually(hardware.poll_events)
            told = {taint["key"] for taint in taints(hardware)}
            assert f"{DRIVER}/xid-{number}" in told
        unknown = [record for record in caplog.records if "XIDs of the time before" in record.message]
        assert len(unknown) == 2 and all(0 <= float(vars(record)["seconds"]) < 30 for record in unknown)
    finally:
        library.close()


def test_a_library_that_nobody_needs_any_more_is_not_looked_for(
    hardware: DeviceState, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []
    monkeypatch.setattr(hardware, "refresh", lambda events, *, rescan: looks.append(rescan))
    for _ in range(3):
        hardware.poll_events()
    assert looks == [], "it runs: nothing is to be looked at"


def test_slices_that_nobody_asks_for_are_not_drawn(root: Path) -> None:
    hardware = DeviceState(
        simulate.build("vm-1gpu", root),
        InventorySettings(nvml_timeout=1.0),
        node="node-a",
        driver=DRIVER,
        monitor=Monitor(SETTINGS, DRIVER),
        keeps_slices=False,
    )
    try:
        assert hardware.inventory.device(GPU) is not None
        assert hardware.slices() == []
    finally:
        hardware.close()
