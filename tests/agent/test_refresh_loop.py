"""When the hardware is looked at again, with events that arrive when the test says so."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from dra_agent.agent import refresh_loop
from dra_agent.agent.device_state import DeviceState
from dra_agent.agent.refresh_loop import RefreshLoop
from dra_agent.errors import PermanentError
from dra_agent.inventory import InventoryDiff
from dra_agent.topology import Uevent, UeventBatch
from eventually import eventually_async

EVENT = Uevent("add", "/devices/pci0000:00/0000:00:04.0", "pci")


class Kernel:
    """A uevent socket whose events come from the test."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self.waiting: list[UeventBatch | Exception] = []

    def announce(self, received: UeventBatch | Exception) -> None:
        self.waiting.append(received)
        os.write(self._write, b"x")

    def fileno(self) -> int:
        return self._read

    def receive(self) -> UeventBatch:
        os.read(self._read, 1)
        received = self.waiting.pop(0)
        if isinstance(received, Exception):
            raise received
        return received

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class Hardware(DeviceState):
    """Remembers how it was asked to look."""

    def __init__(self) -> None:
        self.looks: list[tuple[int, bool]] = []
        self.answer: InventoryDiff | Exception = InventoryDiff()
        self.news = InventoryDiff()
        self.heard = 0

    def refresh(self, events: list[Uevent], *, rescan: bool) -> InventoryDiff:
        self.looks.append((len(events), rescan))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def poll_events(self) -> InventoryDiff:
        self.heard += 1
        return self.news


Story = Callable[[Kernel, Hardware, list[int]], Any]


async def work(_: str, call: Callable[[], InventoryDiff]) -> InventoryDiff:
    return call()


def live(monkeypatch: pytest.MonkeyPatch, story: Story, *, follows_kernel: bool = True) -> None:
    kernel, hardware, changes = Kernel(), Hardware(), list[int]()
    monkeypatch.setattr(refresh_loop, "UeventSocket", lambda: kernel)
    monkeypatch.setattr(refresh_loop, "DEBOUNCE_S", 0.02)

    async def run() -> None:
        watcher = RefreshLoop(hardware, changed=lambda: changes.append(1), work=work, follows_kernel=follows_kernel)
        await watcher.start()
        try:
            await story(kernel, hardware, changes)
        finally:
            await watcher.stop()

    asyncio.run(run())


def test_a_burst_of_events_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(kernel: Kernel, hardware: Hardware, changes: list[int]) -> None:
        # However long the machine takes for them, they come within the time that a burst has.
        monkeypatch.setattr(refresh_loop, "DEBOUNCE_S", refresh_loop.RESCAN_INTERVAL_S / 2)
        hardware.answer = InventoryDiff(added=("gpu-0",))
        for _ in range(5):
            kernel.announce(UeventBatch((EVENT, EVENT), lost=False))
        await eventually_async(lambda: not kernel.waiting)
        assert hardware.looks == []
        loop = asyncio.get_running_loop()
        later = refresh_loop.RESCAN_INTERVAL_S / 2
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + later)
        await eventually_async(lambda: bool(changes))
        assert hardware.looks == [(10, False)]

    live(monkeypatch, story)


@pytest.mark.parametrize("received", [UeventBatch((), lost=True), ValueError("no ACTION in the uevent")])
def test_what_was_lost_or_not_understood_is_healed_by_a_scan(
    monkeypatch: pytest.MonkeyPatch, received: UeventBatch | Exception
) -> None:
    async def story(kernel: Kernel, hardware: Hardware, changes: list[int]) -> None:
        kernel.announce(received)
        await eventually_async(lambda: bool(hardware.looks))
        assert hardware.looks == [(0, True)]
        assert changes == []

    live(monkeypatch, story)


@pytest.mark.parametrize("error", [PermanentError("no sysfs"), RuntimeError("a defect")])
def test_a_look_that_fails_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def story(kernel: Kernel, hardware: Hardware, changes: list[int]) -> None:
        hardware.answer = error
        kernel.announce(UeventBatch((EVENT,), lost=False))
        await eventually_async(lambda: len(hardware.looks) == 1)
        hardware.answer = InventoryDiff(removed=("gpu-0",))
        kernel.announce(UeventBatch((EVENT,), lost=False))
        await eventually_async(lambda: bool(changes))

    live(monkeypatch, story)


@pytest.mark.parametrize(("rescan_s", "rescanned"), [(3600.0, False), (0.0, True)], ids=["health", "everything"])
def test_health_is_looked_at_without_an_event_and_everything_now_and_then(
    monkeypatch: pytest.MonkeyPatch, rescan_s: float, rescanned: bool
) -> None:
    monkeypatch.setattr(refresh_loop, "HEALTH_INTERVAL_S", 0.02)
    monkeypatch.setattr(refresh_loop, "RESCAN_INTERVAL_S", rescan_s)

    async def story(kernel: Kernel, hardware: Hardware, changes: list[int]) -> None:
        await eventually_async(lambda: len(hardware.looks) > 2)
        assert set(hardware.looks) == {(0, rescanned)}

    live(monkeypatch, story)


def test_devices_are_listened_to_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh_loop, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(refresh_loop, "HEALTH_INTERVAL_S", 3600.0)

    async def story(kernel: Kernel, hardware: Hardware, changes: list[int]) -> None:
        await eventually_async(lambda: hardware.heard > 2)
        assert (hardware.looks, changes) == ([], [])
        hardware.news = InventoryDiff(changed=("gpu-0",))
        await eventually_async(lambda: bool(changes))
        assert hardware.looks == []

    live(monkeypatch, story)


def test_a_kernel_that_refuses_the_socket_is_no_reason_not_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermanentError("cannot listen to uevents: Operation not permitted")

    async def run() -> None:
        monkeypatch.setattr(refresh_loop, "UeventSocket", refuse)
        watcher = RefreshLoop(Hardware(), changed=lambda: None, work=work, follows_kernel=True)
        await watcher.start()
        await watcher.stop()

    asyncio.run(run())


def test_what_a_device_says_is_told_after_a_look_where_nobody_announces_that_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(_: Kernel, hardware: Hardware, changes: list[int]) -> None:
        looked_when_told: list[bool] = []
        hardware.news = InventoryDiff(health=("gpu",))
        await eventually_async(lambda: hardware.heard > 0)
        hardware.news = InventoryDiff()
        await eventually_async(lambda: bool(changes))
        looked_when_told.append(bool(hardware.looks))
        assert looked_when_told == [True]
        assert hardware.looks[0] == (0, True)
        assert changes == [1]

    monkeypatch.setattr(refresh_loop, "UNANNOUNCED_INTERVAL_S", 30.0)
    live(monkeypatch, story, follows_kernel=False)
