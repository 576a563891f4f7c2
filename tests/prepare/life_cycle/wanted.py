"""What a claim asks for, small enough to compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prepare.simulated_world import POOL, claim, partition, result


@dataclass(frozen=True)
class Wanted:
    """An allocation: GPUs by number, a share of each, a partition to be made on each."""

    gpus: tuple[int, ...]
    share: str | None = None
    partition: int | None = None

    def claim(self, uid: str, driver: str) -> dict[str, Any]:
        """The object as the API server has it."""
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
        """As the ledger has it."""
        return {(name, self.share) for name in self.names}

    @property
    def locks(self) -> set[str]:
        return {f"{POOL}/{name}" for name in self.names}


def exclude(ours: set[tuple[str, str | None]], theirs: set[tuple[str, str | None]]) -> bool:
    """Tell whether two claims cannot both have their devices."""
    return any(
        one == other and (share is None or other_share is None or share == other_share)
        for one, share in ours
        for other, other_share in theirs
    )
