"""What became of the claims of a doomed host."""

from __future__ import annotations

from datetime import datetime

import msgspec


class ClaimReleaseStatus(msgspec.Struct):
    """What became of one claim."""

    uid: str
    namespace: str
    name: str
    seen: datetime
    pods: tuple[str, ...] = ()
    """The pods for which it is still reserved: who keeps it."""
    tainted: datetime | None = None
    """When it was held by devices that were all tainted."""
    pods_gone: datetime | None = None
    """When it was reserved for no pod any more."""
    unprepared: datetime | None = None
    refused: datetime | None = None
    """When its prepare was refused: it is allocated here, and nothing of it is used."""
    released: datetime | None = None
    overdue: datetime | None = None
    """When the deadline passed and it was not released."""
    unknown: str = ""
    """Why the API server could not be asked the last time; without Kubernetes, what became of its hook."""
    kept: str = ""
    """What keeps a pod of it, though the agent would move it."""
    looked: float = float("-inf")
    """When it was asked about it, in the loop's time."""

    @property
    def state(self) -> str:
        """How far it is: prepared, unprepared (given back), refused (both still allocated here), or released."""
        if self.released is not None:
            return "released"
        if self.refused is not None:
            return "refused"
        return "prepared" if self.unprepared is None else "unprepared"

    @property
    def given_back(self) -> bool:
        """Whether nothing of it is used on this host."""
        return self.unprepared is not None or self.refused is not None


class Progress(msgspec.Struct, frozen=True):
    """How far the release of a host's claims is."""

    tainted_after: float | None = None
    """Seconds from the notice to the last slice; None while some are not tainted, or none is to be."""
    claims: tuple[ClaimReleaseStatus, ...] = ()
    evictions: dict[tuple[str, str], int] = {}
    """Pods that the agent has moved by itself, by how and with what result, since it started."""
    complete: bool = False
    """Whether all is done that the notice asks for."""
