"""The board for the kubelet's stream: every device, its word, and nobody is told where nothing changed."""

from __future__ import annotations

from dra_agent.health.monitor import Monitor
from dra_agent.health.published_health import DeviceHealthStore
from dra_agent.health.settings import HealthSettings
from dra_agent.kubelet_plugin.interfaces import HealthSource
from health.conftest import DRIVER, Clock, gpu, inventory


def test_rows_have_health_and_the_time_of_observation(clock: Clock) -> None:
    board = DeviceHealthStore("node-a", clock)
    source: HealthSource = board
    watched = Monitor(HealthSettings(), DRIVER, None, clock)
    board.publish(watched.observe(inventory(gpu(0, "gpu-lost", "link-down"), gpu(1), gpu(2, health="unmonitored"))))
    clock.now += 5
    rows = list(source.rows())
    assert [(row.pool, row.device, row.health) for row in rows] == [
        ("node-a/gpu", "gpu-0", "unhealthy"),
        ("node-a/gpu", "gpu-1", "healthy"),
        ("node-a/gpu", "gpu-2", "unknown"),
    ]
    assert {row.seen for row in rows} == {clock.now - 5}
    assert rows[0].message == "the GPU is lost; no link" and rows[1].message == ""


def test_watchers_get_only_differences(clock: Clock) -> None:
    board, told = DeviceHealthStore("node-a", clock), []
    unsubscribe = board.subscribe(lambda: told.append(1))
    board.publish(inventory(gpu()))
    board.publish(inventory(gpu()))
    assert len(told) == 1
    board.publish(inventory(gpu(0, "gpu-lost")))
    assert len(told) == 2
    unsubscribe()
    board.publish(inventory(gpu()))
    assert len(told) == 2


def test_health_is_unknown_without_observations(clock: Clock) -> None:
    board = DeviceHealthStore("node-a", clock)
    board.publish(inventory(gpu()))
    clock.now += 61
    board.publish(inventory(gpu()), looked=False)
    (row,) = board.rows()
    assert row.health == "unknown" and "61 s" in row.message
