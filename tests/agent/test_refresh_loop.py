"""When the hardware is scanned again, with events that the test sends."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dra_agent.agent import refresh_loop
from dra_agent.agent.device_state import DeviceState
from dra_agent.agent.inotify import Inotify
from dra_agent.agent.liveness import MonitoredThread
from dra_agent.agent.refresh_loop import RefreshLoop
from dra_agent.agent.tree_watch import TreeWatch
from dra_agent.errors import PermanentError
from dra_agent.inventory.tracker import InventoryDiff
from dra_agent.topology import Uevent, UeventBatch
from eventually import eventually_async

_T = TypeVar("_T")
EVENT = Uevent("add", "/devices/pci0000:00/0000:00:04.0", "pci")


class FakeUeventSocket:
    """A uevent socket whose events come from the test."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self.queued: list[UeventBatch | Exception] = []

    def send(self, batch: UeventBatch | Exception) -> None:
        self.queued.append(batch)
        os.write(self._write, b"x")

    def fileno(self) -> int:
        return self._read

    def receive(self) -> UeventBatch:
        os.read(self._read, 1)
        batch = self.queued.pop(0)
        if isinstance(batch, Exception):
            raise batch
        return batch

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class FakeDeviceState(DeviceState):
    """Records how it is refreshed."""

    def __init__(self) -> None:
        self.refreshes: list[tuple[int, bool]] = []
        self.described_everything: list[bool] = []
        self.refresh_result: InventoryDiff | Exception = InventoryDiff()
        self.poll_result = InventoryDiff()
        self.polls = 0

    def refresh(self, events: list[Uevent], *, rescan: bool, everything: bool = True) -> InventoryDiff:
        self.refreshes.append((len(events), rescan))
        self.described_everything.append(everything)
        if isinstance(self.refresh_result, Exception):
            raise self.refresh_result
        return self.refresh_result

    def poll_events(self) -> InventoryDiff:
        self.polls += 1
        return self.poll_result


Scenario = Callable[[FakeUeventSocket, FakeDeviceState, list[int]], Any]


class InlineThread(MonitoredThread):
    """Calls at once, on the event loop."""

    def __init__(self) -> None:
        pass

    async def run(self, operation: str, limit_s: float, call: Callable[[], _T]) -> _T:
        return call()


def run_loop(
    monkeypatch: pytest.MonkeyPatch, scenario: Scenario, *, follows_kernel: bool = True, tree: Path | None = None
) -> None:
    uevents, hardware, changes = FakeUeventSocket(), FakeDeviceState(), list[int]()
    monkeypatch.setattr(refresh_loop, "UeventSocket", lambda: uevents)
    monkeypatch.setattr(refresh_loop, "DEBOUNCE_S", 0.02)

    async def run() -> None:
        loop_ = RefreshLoop(
            hardware,
            thread=InlineThread(),
            changed=lambda: changes.append(1),
            follows_kernel=follows_kernel,
            watch=None if tree is None else TreeWatch([tree]),
        )
        await loop_.start()
        try:
            await scenario(uevents, hardware, changes)
        finally:
            await loop_.stop()

    asyncio.run(run())


def test_a_burst_of_events_causes_one_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(uevents: FakeUeventSocket, hardware: FakeDeviceState, changes: list[int]) -> None:
        # On a slow machine the events still arrive within the debounce interval.
        monkeypatch.setattr(refresh_loop, "DEBOUNCE_S", refresh_loop.RESCAN_INTERVAL_S / 2)
        hardware.refresh_result = InventoryDiff(added=("gpu-0",))
        for _ in range(5):
            uevents.send(UeventBatch((EVENT, EVENT), lost=False))
        await eventually_async(lambda: not uevents.queued)
        assert hardware.refreshes == []
        loop = asyncio.get_running_loop()
        later = refresh_loop.RESCAN_INTERVAL_S / 2
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + later)
        await eventually_async(lambda: bool(changes))
        assert hardware.refreshes == [(10, False)]

    run_loop(monkeypatch, scenario)


def test_events_do_not_postpone_the_health_check(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(uevents: FakeUeventSocket, hardware: FakeDeviceState, changes: list[int]) -> None:
        uevents.send(UeventBatch((EVENT,), lost=False))
        await eventually_async(lambda: len(hardware.refreshes) == 1)
        uevents.send(UeventBatch((EVENT,), lost=False))
        await eventually_async(lambda: len(hardware.refreshes) == 2)
        assert hardware.described_everything == [False, False]
        loop = asyncio.get_running_loop()
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + refresh_loop.HEALTH_INTERVAL_S)
        uevents.send(UeventBatch((EVENT,), lost=False))
        await eventually_async(lambda: True in hardware.described_everything)
        uevents.send(UeventBatch((EVENT,), lost=False))
        await eventually_async(lambda: hardware.described_everything[-1] is False)

    monkeypatch.setattr(refresh_loop, "HEALTH_INTERVAL_S", 3000.0)
    monkeypatch.setattr(refresh_loop, "RESCAN_INTERVAL_S", 30000.0)
    run_loop(monkeypatch, scenario)


def test_virtual_interfaces_of_pods_cause_no_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    interface = "/devices/virtual/net/veth0"
    pod = (Uevent("add", interface, "net"), Uevent("add", f"{interface}/queues/rx-0", "queues"))

    async def scenario(uevents: FakeUeventSocket, hardware: FakeDeviceState, changes: list[int]) -> None:
        uevents.send(UeventBatch(pod, lost=False))
        await eventually_async(lambda: not uevents.queued)
        # Polls continue, which a refresh would have delayed.
        await eventually_async(lambda: hardware.polls > 0)
        assert hardware.refreshes == []
        uevents.send(UeventBatch((*pod, EVENT, Uevent("add", "/devices/virtual/vfio/7", "vfio")), lost=False))
        await eventually_async(lambda: bool(hardware.refreshes))
        assert hardware.refreshes == [(2, False)]

    monkeypatch.setattr(refresh_loop, "POLL_INTERVAL_S", 0.1)
    run_loop(monkeypatch, scenario)


@pytest.mark.parametrize("batch", [UeventBatch((), lost=True), ValueError("no ACTION in the uevent")])
def test_lost_or_malformed_events_cause_a_full_scan(
    monkeypatch: pytest.MonkeyPatch, batch: UeventBatch | Exception
) -> None:
    async def scenario(uevents: FakeUeventSocket, hardware: FakeDeviceState, changes: list[int]) -> None:
        uevents.send(batch)
        await eventually_async(lambda: bool(hardware.refreshes))
        assert hardware.refreshes == [(0, True)]
        assert changes == []

    run_loop(monkeypatch, scenario)


@pytest.mark.parametrize("error", [PermanentError("no sysfs"), RuntimeError("a defect")])
def test_a_failed_refresh_does_not_end_the_loop(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def scenario(uevents: FakeUeventSocket, hardware: FakeDeviceState, changes: list[int]) -> None:
        hardware.refresh_result = error
        uevents.send(UeventBatch((EVENT,), lost=False))
        await eventually_async(lambda: len(hardware.refreshes) == 1)
        hardware.refresh_result = InventoryDiff(removed=("gpu-0",))
        uevents.send(UeventBatch((EVENT,), lost=False))
        await eventually_async(lambda: bool(changes))

    run_loop(monkeypatch, scenario)


def test_a_refresh_that_keeps_failing_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(refresh_loop, "UNANNOUNCED_INTERVAL_S", 0.01)

    async def scenario(uevents: FakeUeventSocket, hardware: FakeDeviceState, changes: list[int]) -> None:
        hardware.refresh_result = PermanentError("too many open files")
        await eventually_async(lambda: len(hardware.refreshes) > 5)

    run_loop(monkeypatch, scenario, follows_kernel=False)
    assert [vars(record).get("reason") for record in caplog.records] == ["too many open files"]


@pytest.mark.parametrize(("rescan_s", "rescanned"), [(3600.0, False), (0.0, True)], ids=["health", "everything"])
def test_health_and_inventory_are_refreshed_periodically(
    monkeypatch: pytest.MonkeyPatch, rescan_s: float, rescanned: bool
) -> None:
    monkeypatch.setattr(refresh_loop, "HEALTH_INTERVAL_S", 0.02)
    monkeypatch.setattr(refresh_loop, "RESCAN_INTERVAL_S", rescan_s)

    async def scenario(uevents: FakeUeventSocket, hardware: FakeDeviceState, changes: list[int]) -> None:
        await eventually_async(lambda: len(hardware.refreshes) > 2)
        assert set(hardware.refreshes) == {(0, rescanned)}

    run_loop(monkeypatch, scenario)


def test_devices_are_polled_between_refreshes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh_loop, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(refresh_loop, "HEALTH_INTERVAL_S", 3600.0)

    async def scenario(uevents: FakeUeventSocket, hardware: FakeDeviceState, changes: list[int]) -> None:
        await eventually_async(lambda: hardware.polls > 2)
        assert (hardware.refreshes, changes) == ([], [])
        hardware.poll_result = InventoryDiff(changed=("gpu-0",))
        await eventually_async(lambda: bool(changes))
        assert hardware.refreshes == []

    run_loop(monkeypatch, scenario)


def test_the_agent_starts_without_a_uevent_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermanentError("cannot listen to uevents: Operation not permitted")

    async def run() -> None:
        monkeypatch.setattr(refresh_loop, "UeventSocket", refuse)
        loop_ = RefreshLoop(FakeDeviceState(), thread=InlineThread(), changed=lambda: None, follows_kernel=True)
        await loop_.start()
        await loop_.stop()

    asyncio.run(run())


def test_without_uevents_a_health_change_follows_a_full_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(_: FakeUeventSocket, hardware: FakeDeviceState, changes: list[int]) -> None:
        refreshed_before_change: list[bool] = []
        hardware.poll_result = InventoryDiff(health=("gpu",))
        await eventually_async(lambda: hardware.polls > 0)
        hardware.poll_result = InventoryDiff()
        await eventually_async(lambda: bool(changes))
        refreshed_before_change.append(bool(hardware.refreshes))
        assert refreshed_before_change == [True]
        assert hardware.refreshes[0] == (0, True)
        assert changes == [1]

    monkeypatch.setattr(refresh_loop, "UNANNOUNCED_INTERVAL_S", 30.0)
    run_loop(monkeypatch, scenario, follows_kernel=False)


def test_an_idle_simulated_host_is_not_scanned_until_it_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The number of scans, while the loop has polled for events more often than it scanned before."""
    monkeypatch.setattr(refresh_loop, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(refresh_loop, "UNANNOUNCED_INTERVAL_S", 0.01)
    monkeypatch.setattr(refresh_loop, "HEALTH_INTERVAL_S", 3600.0)
    below = tmp_path / "devices"
    below.mkdir()

    async def scenario(_: FakeUeventSocket, hardware: FakeDeviceState, changes: list[int]) -> None:
        await eventually_async(lambda: hardware.polls > 20)
        assert hardware.refreshes == []
        (below / "numa_node").write_text("1")
        await eventually_async(lambda: (0, True) in hardware.refreshes)
        known = len(hardware.refreshes)
        (below / "added").mkdir()
        await eventually_async(lambda: len(hardware.refreshes) > known)
        polls, known = hardware.polls, len(hardware.refreshes)
        await eventually_async(lambda: hardware.polls > polls + 20)
        assert len(hardware.refreshes) <= known + 1, "the events of one change may come in two parts"
        known = len(hardware.refreshes)
        (below / "added" / "vendor").write_text("0x10de")
        await eventually_async(lambda: len(hardware.refreshes) > known)

    run_loop(monkeypatch, scenario, follows_kernel=False, tree=tmp_path)


def test_a_tree_of_the_kernel_is_scanned_at_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """As /host/sys: its files change without an event."""
    monkeypatch.setattr(refresh_loop, "UNANNOUNCED_INTERVAL_S", 0.01)

    async def scenario(_: FakeUeventSocket, hardware: FakeDeviceState, changes: list[int]) -> None:
        await eventually_async(lambda: len(hardware.refreshes) > 2)

    run_loop(monkeypatch, scenario, follows_kernel=False, tree=Path("/proc/self/task"))


def test_a_tree_that_cannot_be_followed_is_scanned_at_an_interval(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(refresh_loop, "UNANNOUNCED_INTERVAL_S", 0.01)

    def refuse(self: Inotify, folder: Path | str, events: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Inotify, "add", refuse)

    async def scenario(_: FakeUeventSocket, hardware: FakeDeviceState, changes: list[int]) -> None:
        await eventually_async(lambda: len(hardware.refreshes) > 2)

    run_loop(monkeypatch, scenario, follows_kernel=False, tree=tmp_path)
