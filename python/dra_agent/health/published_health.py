"""Published device health for observers such as the kubelet's health stream."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from dra_agent.clock import STEADY
from dra_agent.inventory.model import Device, Inventory

log = logging.getLogger(__name__)

STALE_AFTER_S = 60.0
"""Seconds after which an observation is stale: the refresh loop hangs."""

KubeletHealth = Literal["healthy", "unhealthy", "unknown"]
_KUBELET_HEALTH: dict[str, KubeletHealth] = {"healthy": "healthy", "unhealthy": "unhealthy", "unmonitored": "unknown"}


class DeviceHealth(msgspec.Struct, frozen=True):
    """The health of one device."""

    pool: str
    device: str
    health: KubeletHealth
    seen: float
    """Unix time by the wall clock: the kubelet shows it."""
    message: str


class DeviceHealthStore:
    """The published health of one host's devices; safe to use from several threads."""

    def __init__(self, node: str, clock: Callable[[], float] = STEADY.unix) -> None:
        self._node = node
        self._clock = clock
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], None]] = []
        self._inventory = Inventory()
        self._observed_at = clock()

    def publish(self, inventory: Inventory, *, observed: bool = True) -> None:
        """Publish an evaluated inventory; observers are called on a change.

        `observed`: the devices were observed just now; otherwise only events are new.
        """
        before = _published(self._inventory)
        self._inventory = inventory
        if observed:
            self._observed_at = self._clock()
        if _published(inventory) == before:
            return
        with self._lock:
            watchers = list(self._watchers)
        for changed in watchers:
            changed()

    def _wall(self, time: float) -> float:
        return time + STEADY.offset.total_seconds()

    def rows(self) -> Sequence[DeviceHealth]:
        """Return the last state of all devices; never blocks. It is unknown after a minute without an observation."""
        inventory, observed_at = self._inventory, self._observed_at
        age, seen = self._clock() - observed_at, self._wall(observed_at)
        if age > STALE_AFTER_S:
            message = f"not checked for {age:.0f} s"
            return [
                DeviceHealth(device.pool(self._node), device.name, "unknown", seen, message)
                for device in inventory.devices
            ]
        return [
            DeviceHealth(
                device.pool(self._node),
                device.name,
                _KUBELET_HEALTH[device.health],
                seen,
                "" if device.health == "healthy" else device.health_reason or "",
            )
            for device in inventory.devices
        ]

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Have `changed` called, on any thread, after rows changed; the result ends that."""
        with self._lock:
            self._watchers.append(changed)

        def unsubscribe() -> None:
            with self._lock:
                self._watchers.remove(changed)

        return unsubscribe


def _published(inventory: Inventory) -> list[tuple[str, str, str | None]]:
    return [(device.name, device.health, device.health_reason) for device in inventory.devices]


def unusable_reason(device: Device | None) -> str:
    """Return why containers cannot use a device of a prepared claim; "" where nothing is known against it."""
    if device is None:
        return "is not on this host now"
    if device.health == "unhealthy":
        return device.health_reason or "is unhealthy"
    return ""
