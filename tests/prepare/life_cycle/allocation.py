"""The allocation of a claim in a form that is easy to compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prepare.simulated_node import POOL, claim, partition, result


@dataclass(frozen=True)
class Allocation:
    """An allocation: GPUs by number, with a share or a partition of each."""

    gpus: tuple[int, ...]
    share: str | None = None
    partition: int | None = None

    def claim(self, uid: str, driver: str) -> dict[str, Any]:
        """Return the object as the API server does."""
        share = {"shareID": self.share} if self.share else {}
        config = [partition(self.partition)] if self.partition else []
        for entry in config:
            entry["opaque"]["driver"] = driver
        return claim(uid, *(result(name, driver=driver, **share) for name in self.names), config=config)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"gpu-{number}" for number in self.gpus)

    @property
    def held(self) -> set[tuple[str, str | None]]:
        """Return the devices as the ledger stores them."""
        return {(name, self.share) for name in self.names}

    @property
    def locks(self) -> set[str]:
        return {f"{POOL}/{name}" for name in self.names}


def are_exclusive(first: set[tuple[str, str | None]], second: set[tuple[str, str | None]]) -> bool:
    """Return whether two claims cannot hold their devices at the same time."""
    return any(
        one == other and (share is None or other_share is None or share == other_share)
        for one, share in first
        for other, other_share in second
    )
