"""The published health: all devices, and a notification only after a change."""

from __future__ import annotations

from dra_agent.health.monitor import Monitor
from dra_agent.health.published_health import DeviceHealthStore
from dra_agent.health.settings import HealthSettings
from health.conftest import DRIVER, Clock, gpu, inventory


def test_rows_have_health_and_the_time_of_observation(clock: Clock) -> None:
    store = DeviceHealthStore("node-a", clock)
    watched = Monitor(HealthSettings(), DRIVER, None, clock)
    store.publish(watched.observe(inventory(gpu(0, "gpu-lost", "link-down"), gpu(1), gpu(2, health="unmonitored"))))
    clock.now += 5
    rows = list(store.rows())
    assert [(row.pool, row.device, row.health) for row in rows] == [
        ("node-a/gpu", "gpu-0", "unhealthy"),
        ("node-a/gpu", "gpu-1", "healthy"),
        ("node-a/gpu", "gpu-2", "unknown"),
    ]
    assert {row.seen for row in rows} == {clock.now - 5}
    assert rows[0].message == "the GPU is lost; no link" and rows[1].message == ""


def test_watchers_get_only_differences(clock: Clock) -> None:
    store, changes = DeviceHealthStore("node-a", clock), []
    unsubscribe = store.subscribe(lambda: changes.append(1))
    store.publish(inventory(gpu()))
    store.publish(inventory(gpu()))
    assert len(changes) == 1
    store.publish(inventory(gpu(0, "gpu-lost")))
    assert len(changes) == 2
    unsubscribe()
    store.publish(inventory(gpu()))
    assert len(changes) == 2


def test_health_is_unknown_without_observations(clock: Clock) -> None:
    store = DeviceHealthStore("node-a", clock)
    store.publish(inventory(gpu()))
    clock.now += 61
    store.publish(inventory(gpu()), observed=False)
    (row,) = store.rows()
    assert row.health == "unknown" and "61 s" in row.message
