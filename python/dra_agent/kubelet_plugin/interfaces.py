"""Interfaces of layers above the plugin: claims of the API server, and metrics."""

from __future__ import annotations

from typing import Protocol

from dra_agent.api_object import Object


class ClaimSource(Protocol):
    """Reads claims from the API server. A protocol, because the agent, which has the connection, is a layer above."""

    async def claim(self, namespace: str, name: str, timeout: float) -> Object:
        """Get a ResourceClaim within `timeout` seconds; raises the errors of dra_agent.kube_client."""

    def claim_on_thread(self, namespace: str, name: str, timeout: float) -> Object | None:
        """Get it on the calling thread, with one attempt and the same errors; None if `claim` has to be used."""


class PluginMetrics(Protocol):
    """Observes calls of the kubelet; called on any thread, and must not block.

    A protocol, because `Metrics`, which implements it, is in a layer above.
    """

    def registration(self, registered: bool, error: str) -> None:
        """Record that the kubelet has registered the driver, or why not."""

    def observe_phase(self, phase: str, seconds: float) -> None:
        """Record the duration of a phase of a request."""
