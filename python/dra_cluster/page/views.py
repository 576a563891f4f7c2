"""What the page shows: values of one host and of one cluster. None is unknown, never 0."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DeviceView:
    """A device of the host."""

    name: str
    type: str = ""
    product: str = ""
    health: str = "healthy"
    """With its causes, if it is not healthy."""
    taints: tuple[str, ...] = ()
    """KEY:EFFECT."""
    claims: tuple[str, ...] | None = ()
    """NAMESPACE/NAME of the claims that hold it; None if they are not known."""
    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_limit_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReleaseView:
    """The progress of one claim of a reclaim."""

    claim: str
    state: str
    pods: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class ReclaimView:
    """The reclaim of the host."""

    phase: str
    """none, hint, notice or cancelled."""
    seconds_left: float | None = None
    """To its deadline, when the host was read; negative after it."""
    reasons: tuple[str, ...] = ()
    """SOURCE: DESCRIPTION of each signal."""
    claims: tuple[ReleaseView, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HostView:
    """One host."""

    name: str
    agent: str | None
    """The agent that runs here; None: none responds, and the devices are those of a scan."""
    note: str = ""
    """What the page cannot show of this host, and why."""
    devices: tuple[DeviceView, ...] = ()
    telemetry: str = ""
    """The age of the values, or why there are none."""
    reclaim: ReclaimView | None = None
    picture: str = ""
    """The topology as an SVG document."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node of the cluster by its devices."""

    name: str
    families: tuple[tuple[str, int], ...] = ()
    """Numbers of published devices by type."""
    devices: int = 0
    held: int = 0
    """Devices that a claim holds."""
    tainted: int = 0
    """Devices with a taint that keeps new claims away."""
    phase: str = "none"
    """Of its reclaim."""
    message: str = ""
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PendingView:
    """A claim that is not allocated."""

    claim: str
    created: str | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class ClusterView:
    """One cluster."""

    nodes: tuple[NodeView, ...] = ()
    pending: tuple[PendingView, ...] = ()
    """The oldest first, with a reason."""
    pending_total: int = 0
    notes: tuple[str, ...] = ()
    """Objects that could not be read."""
