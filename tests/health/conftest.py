"""A clock that stands still until it is set, and devices with what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dra_agent.inventory.model import Device, DeviceEvent, Health, Inventory, ObservedIssue

DRIVER = "dra-agent.internal"
MESSAGES = {"gpu-lost": "the GPU is lost", "link-down": "no link", "reset-required": "a reset is needed"}


@dataclass
class Clock:
    """Unix time of a test."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def gpu(number: int = 0, *causes: str, errors: int | None = None, health: Health = "healthy") -> Device:
    issues = tuple(ObservedIssue(cause, MESSAGES.get(cause, cause)) for cause in causes)
    return Device(
        f"gpu-{number}",
        "gpu",
        "nvidia",
        f"0000:0{number}:00.0",
        attributes={},
        health="unhealthy" if issues else health,
        health_reason=issues[0].message if issues else None,
        issues=issues,
        memory_errors=errors,
    )


def inventory(*devices: Device) -> Inventory:
    return Inventory(devices=devices or (gpu(),))


def xid(code: int, number: int = 0) -> DeviceEvent:
    return DeviceEvent(f"0000:0{number}:00.0", f"xid-{code}", f"NVIDIA's driver reported XID {code}")


def taints(found: Inventory, number: int = 0) -> list[tuple[str, str]]:
    device = found.device(f"gpu-{number}")
    assert device is not None
    return [(taint.key.removeprefix(f"{DRIVER}/"), taint.effect) for taint in device.taints]
