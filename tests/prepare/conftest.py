"""A host of files, a ledger that crashes on demand, claims as the API gives them, and a vendor set-up."""

from __future__ import annotations

from pathlib import Path

import pytest

from deadlines import deadline_clock
from prepare.simulated_world import World

__all__ = ["deadline_clock", "world"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
