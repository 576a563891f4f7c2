"""Which Events devices make that fail, recover, or leave while they are held."""

from __future__ import annotations

from typing import Any

import pytest

from dra_agent.inventory import Inventory
from dra_agent.status import DeviceEventEmitter, ObjectReference, PreparedClaim, Reason
from dra_agent.status.device_status import DeviceKey
from status.conftest import POOL, Host

HELD = PreparedClaim("uid-a", "team-a", "a", (DeviceKey(POOL, "gpu-0"),))


class Recorded:
    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def record(self, reason: Reason, subject: ObjectReference, note: str) -> None:
        self.events.append((reason.name, f"{subject.kind.kind} {subject.name}", note))

    def take(self) -> list[tuple[str, str, str]]:
        taken, self.events = self.events, []
        return taken


@pytest.fixture
def world(host: Host) -> tuple[Host, Recorded, DeviceEventEmitter]:
    recorded = Recorded()
    watch = DeviceEventEmitter(
        "node-1", recorded, lambda: Inventory(devices=tuple(host.devices.values())), lambda: [HELD]
    )
    return host, recorded, watch


def test_a_device_that_fails_is_told_at_the_node_and_at_its_claims(world: Any) -> None:
    host, recorded, watch = world
    watch.changed()
    assert recorded.take() == []
    host.change("gpu-0", health="unhealthy", health_reason="XID 79")
    host.change("gpu-1", health="unhealthy", health_reason="XID 48")
    watch.changed()
    watch.changed()
    assert recorded.take() == [
        ("DeviceUnhealthy", "Node node-1", f"device gpu-0 of pool {POOL}: Unhealthy: XID 79"),
        ("DeviceUnhealthy", "ResourceClaim a", f"device gpu-0 of pool {POOL}: Unhealthy: XID 79"),
        ("DeviceUnhealthy", "Node node-1", f"device gpu-1 of pool {POOL}: Unhealthy: XID 48"),
    ]
    host.change("gpu-0", health="unhealthy", health_reason="XID 31")
    watch.changed()
    assert {note for _, _, note in recorded.take()} == {f"device gpu-0 of pool {POOL}: Unhealthy: XID 31"}
    host.change("gpu-0", health="healthy", health_reason=None)
    watch.changed()
    assert [event[:2] for event in recorded.take()] == [
        ("DeviceHealthy", "Node node-1"),
        ("DeviceHealthy", "ResourceClaim a"),
    ]


def test_what_is_ill_at_the_start_is_told(world: Any) -> None:
    host, recorded, watch = world
    host.change("gpu-1", health="unhealthy", health_reason="XID 48")
    watch.changed()
    assert [event[:2] for event in recorded.take()] == [("DeviceUnhealthy", "Node node-1")]


def test_a_held_device_that_leaves_is_told_once_and_a_free_one_is_not(world: Any) -> None:
    host, recorded, watch = world
    watch.changed()
    gone = host.devices.pop("gpu-0")
    del host.devices["gpu-1"]
    watch.changed()
    watch.changed()
    assert recorded.take() == [
        (
            "DeviceLost",
            "ResourceClaim a",
            f"device gpu-0 of pool {POOL} is not on node node-1 any more, and the claim holds it",
        )
    ]
    host.devices["gpu-0"] = gone
    watch.changed()
    assert recorded.take() == []
    del host.devices["gpu-0"]
    watch.changed()
    assert len(recorded.take()) == 1


def test_an_ill_device_that_leaves_has_not_recovered(world: Any) -> None:
    host, recorded, watch = world
    host.change("gpu-1", health="unhealthy", health_reason="XID 79")
    watch.changed()
    del host.devices["gpu-1"]
    watch.changed()
    assert [event[0] for event in recorded.take()] == ["DeviceUnhealthy"]
