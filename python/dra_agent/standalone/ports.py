"""What standalone mode asks of the parts that it drives: an allocator, and someone who prepares claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dra_agent.deadline import Deadline

Object = dict[str, Any]
"""An object of the API as JSON values."""


class Prepared(Protocol):
    """One device of a claim that is ready for containers."""

    @property
    def request_names(self) -> Sequence[str]:
        """The requests of the claim that it was allocated for."""

    @property
    def pool(self) -> str:
        """The pool that it is in."""

    @property
    def device(self) -> str:
        """Its name in the pool."""

    @property
    def cdi_device_ids(self) -> Sequence[str]:
        """What a container runtime is given for it."""

    @property
    def share_id(self) -> str | None:
        """Which share of it, if it is shared."""


class Preparer(Protocol):
    """Makes an allocated claim ready for containers, and undoes it. Raises AgentError.

    Whatever is waited for is given up at `deadline` with a RetryableError.
    """

    def prepare(self, claim: Object, deadline: Deadline) -> Sequence[Prepared]:
        """Prepare a claim, or check and mend one that is prepared already."""

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release a claim; one that is not known is none of its business."""


class Allocate(Protocol):
    """The allocator: `dra_agent.allocator.allocate`."""

    def __call__(
        self, *, node: str, classes: list[Object], slices: list[Object], claims: list[Object], allocated: list[Object]
    ) -> Object:
        """Give {"allocated": bool, "results": [AllocationResult per claim], "error": str | None}."""
