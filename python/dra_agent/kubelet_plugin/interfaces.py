"""What the plugin asks of other parts: claims from the API server, someone who prepares them, the devices' health."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from dra_agent.deadline import Deadline

Object = dict[str, Any]
"""An object of the API as JSON values."""


class Prepared(Protocol):
    """One device of a claim that is ready for containers."""

    @property
    def request_names(self) -> Sequence[str]:
        """The requests of the claim that it was allocated for, without subrequests."""

    @property
    def pool(self) -> str:
        """The pool that it is in."""

    @property
    def device(self) -> str:
        """Its name in the pool."""

    @property
    def cdi_device_ids(self) -> Sequence[str]:
        """What a container runtime is given for it, in this order."""

    @property
    def share_id(self) -> str | None:
        """Which share of it, if it is shared."""


class ClaimPreparer(Protocol):
    """Makes an allocated claim ready for containers, and undoes it. Called on several threads. Raises AgentError.

    Whatever is waited for is given up at `deadline` with a RetryableError.
    """

    def prepare(self, claim: Object, deadline: Deadline) -> Sequence[Prepared]:
        """Prepare a claim, or check and mend one that is prepared already."""

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release a claim; one that is not known is none of its business."""


class ClaimSource(Protocol):
    """Where claims are read."""

    async def claim(self, namespace: str, name: str, timeout: float) -> Object:
        """Get a ResourceClaim within `timeout` seconds; raises the errors of dra_agent.kube_client."""


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
        """How it does; "unknown" where nobody can say."""

    @property
    def seen(self) -> float:
        """When it was looked at, in Unix time."""

    @property
    def message(self) -> str:
        """Why, for people; "" where there is nothing to say."""


class HealthSource(Protocol):
    """Who knows how the devices do."""

    def rows(self) -> Sequence[DeviceHealth]:
        """Give all devices as they were seen last; never waits."""

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Have `changed` called, on any thread, after rows changed; the result ends that."""


class PluginMetrics(Protocol):
    """Who wants to know what the kubelet does; called on the event loop, and must not wait."""

    def registration(self, registered: bool, error: str) -> None:
        """Note that the kubelet has taken the driver in, or why not."""

    def observe_phase(self, phase: str, seconds: float) -> None:
        """Note how long a part of a request took."""
