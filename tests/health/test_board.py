"""The board for the kubelet's stream: every device, its word, and nobody is told where nothing changed."""

from __future__ import annotations

from dra_agent.health import HealthBoard, HealthSettings, Monitor
from dra_agent.plugin.ports import HealthSource
from health.conftest import DRIVER, Clock, gpu, inventory


def test_rows_say_how_devices_do_and_since_when_they_were_seen(clock: Clock) -> None:
    board = HealthBoard("node-a", clock)
    source: HealthSource = board
    watched = Monitor(HealthSettings(), DRIVER, None, clock)
    board.post(watched.look(inventory(gpu(0, "gpu-lost", "link-down"), gpu(1), gpu(2, health="unmonitored"))))
    clock.now += 5
    rows = list(source.rows())
    assert [(row.pool, row.device, row.health) for row in rows] == [
        ("node-a/gpu", "gpu-0", "unhealthy"),
        ("node-a/gpu", "gpu-1", "healthy"),
        ("node-a/gpu", "gpu-2", "unknown"),
    ]
    assert {row.seen for row in rows} == {clock.now - 5}
    assert rows[0].message == "the GPU is lost; no link" and rows[1].message == ""


def test_watchers_are_told_of_differences_only(clock: Clock) -> None:
    board, told = HealthBoard("node-a", clock), []
    unsubscribe = board.subscribe(lambda: told.append(1))
    board.post(inventory(gpu()))
    board.post(inventory(gpu()))
    assert len(told) == 1
    board.post(inventory(gpu(0, "gpu-lost")))
    assert len(told) == 2
    unsubscribe()
    board.post(inventory(gpu()))
    assert len(told) == 2


def test_when_nobody_can_look_nothing_is_known(clock: Clock) -> None:
    board = HealthBoard("node-a", clock)
    board.post(inventory(gpu()))
    clock.now += 61
    board.post(inventory(gpu()), looked=False)
    (row,) = board.rows()
    assert row.health == "unknown" and "61 s" in row.message
