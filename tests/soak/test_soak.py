"""A short soak with restarts, which finds leftovers. The long soak, `make soak`, finds slow growth."""

from __future__ import annotations

import asyncio
from pathlib import Path

from soak.soak import Soak, soak


def test_no_leftovers_after_many_claims_and_restarts(short_path: Path) -> None:
    async def run() -> Soak:
        machine = Soak(short_path, seed=1)
        try:
            await soak(machine, pairs=400, warm_up=200, quiet_s=0.0, restarts=2, until=lambda: False)
        finally:
            await machine.close()
        return machine

    machine = asyncio.run(run())
    assert machine.starts == 3
    assert sum(machine.disturbed.values()) >= 1, "no disturbance happened"
