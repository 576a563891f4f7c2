"""Events for devices that fail, recover, or disappear while a claim holds them."""

from __future__ import annotations

from typing import Any

import pytest

from dra_agent.prepare.ledger import HeldDevice, LedgerEntry
from dra_agent.status import DeviceEventEmitter, EventRecorder, ObjectReference, Reason
from reclaim.doubles import MemoryLedger
from status.conftest import POOL, Host

LEDGER = MemoryLedger([LedgerEntry("uid-a", "team-a", "a", (HeldDevice(POOL, "gpu-0", "gpu"),), "completed")])


class FakeRecorder(EventRecorder):
    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def record(self, reason: Reason, subject: ObjectReference, note: str) -> None:
        self.events.append((reason.name, f"{subject.kind.kind} {subject.name}", note))

    def take(self) -> list[tuple[str, str, str]]:
        taken, self.events = self.events, []
        return taken


@pytest.fixture
def emitter(host: Host) -> tuple[Host, FakeRecorder, DeviceEventEmitter]:
    recorder = FakeRecorder()
    return host, recorder, DeviceEventEmitter("node-1", recorder, host, LEDGER)


def test_a_failing_device_is_reported_for_its_node_and_claims(emitter: Any) -> None:
    host, recorder, emitter_ = emitter
    emitter_.changed()
    assert recorder.take() == []
    host.change("gpu-0", health="unhealthy", health_reason="XID 79")
    host.change("gpu-1", health="unhealthy", health_reason="XID 48")
    emitter_.changed()
    emitter_.changed()
    assert recorder.take() == [
        ("DeviceUnhealthy", "Node node-1", f"device gpu-0 of pool {POOL}: Unhealthy: XID 79"),
        ("DeviceUnhealthy", "ResourceClaim a", f"device gpu-0 of pool {POOL}: Unhealthy: XID 79"),
        ("DeviceUnhealthy", "Node node-1", f"device gpu-1 of pool {POOL}: Unhealthy: XID 48"),
    ]
    host.change("gpu-0", health="unhealthy", health_reason="XID 31")
    emitter_.changed()
    assert {note for _, _, note in recorder.take()} == {f"device gpu-0 of pool {POOL}: Unhealthy: XID 31"}
    host.change("gpu-0", health="healthy", health_reason=None)
    emitter_.changed()
    assert [event[:2] for event in recorder.take()] == [
        ("DeviceHealthy", "Node node-1"),
        ("DeviceHealthy", "ResourceClaim a"),
    ]


def test_a_device_that_is_unhealthy_at_startup_is_reported(emitter: Any) -> None:
    host, recorder, emitter_ = emitter
    host.change("gpu-1", health="unhealthy", health_reason="XID 48")
    emitter_.changed()
    assert [event[:2] for event in recorder.take()] == [("DeviceUnhealthy", "Node node-1")]


def test_only_a_held_device_is_reported_as_lost_and_once(emitter: Any) -> None:
    host, recorder, emitter_ = emitter
    emitter_.changed()
    gone = host.devices.pop("gpu-0")
    del host.devices["gpu-1"]
    emitter_.changed()
    emitter_.changed()
    assert recorder.take() == [
        (
            "DeviceLost",
            "ResourceClaim a",
            f"device gpu-0 of pool {POOL} is not on node node-1 any more, and the claim holds it",
        )
    ]
    host.devices["gpu-0"] = gone
    emitter_.changed()
    assert recorder.take() == []
    del host.devices["gpu-0"]
    emitter_.changed()
    assert len(recorder.take()) == 1


def test_an_unhealthy_device_that_disappears_has_not_recovered(emitter: Any) -> None:
    host, recorder, emitter_ = emitter
    host.change("gpu-1", health="unhealthy", health_reason="XID 79")
    emitter_.changed()
    del host.devices["gpu-1"]
    emitter_.changed()
    assert [event[0] for event in recorder.take()] == ["DeviceUnhealthy"]
