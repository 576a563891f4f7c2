"""A short soak with restarts: nothing is left over. What grows slowly is found by the long one, `make soak`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from soak.soak import Soak, soak


def test_nothing_is_left_after_many_claims_and_restarts(short_path: Path) -> None:
    async def run() -> Soak:
        one = Soak(short_path, seed=1)
        try:
            await soak(one, pairs=400, warm_up=200, quiet_s=0.0, restarts=2, until=lambda: False)
        finally:
            await one.close()
        return one

    one = asyncio.run(run())
    assert one.lives == 3
    assert sum(one.disturbed.values()) >= 1, "nothing was disturbed"
