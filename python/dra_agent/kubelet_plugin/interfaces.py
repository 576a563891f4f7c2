"""Interfaces that the plugin needs: claims of the API server, and device health."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

Object = dict[str, Any]
"""An object of the API as JSON values."""


class ClaimSource(Protocol):
    """Where claims are read."""

    async def claim(self, namespace: str, name: str, timeout: float) -> Object:
        """Get a ResourceClaim within `timeout` seconds; raises the errors of dra_agent.kube_client."""

    def claim_on_thread(self, namespace: str, name: str, timeout: float) -> Object | None:
        """Get it on the calling thread, with one attempt and the same errors; None if `claim` has to be used."""


class DeviceHealth(Protocol):
    """How one device does."""

    @property
    def pool(self) -> str:
        """The pool that it is in."""

    @property
    def device(self) -> str:
        """Its name in the pool."""

    @property
    def health(self) -> Literal["healthy", "unhealthy", "unknown"]:
        """Its health; "unknown" if not monitored."""

    @property
    def seen(self) -> float:
        """Time of the last check, Unix time."""

    @property
    def message(self) -> str:
        """The reason; may be empty."""


class HealthSource(Protocol):
    """The source of device health."""

    def rows(self) -> Sequence[DeviceHealth]:
        """Return the last known state of all devices; never blocks."""

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Have `changed` called, on any thread, after rows changed; the result ends that."""


class PluginMetrics(Protocol):
    """Observes calls of the kubelet; called on any thread, and must not block."""

    def registration(self, registered: bool, error: str) -> None:
        """Record that the kubelet has registered the driver, or why not."""

    def observe_phase(self, phase: str, seconds: float) -> None:
        """Record the duration of a phase of a request."""
