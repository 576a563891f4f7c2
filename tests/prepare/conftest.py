"""A simulated node: device nodes, a ledger that crashes on demand, a CDI directory, and a device setup."""

from __future__ import annotations

from pathlib import Path

import pytest

from deadlines import deadline_clock, running_clock
from prepare.simulated_node import SimulatedNode

__all__ = ["deadline_clock", "node", "running_clock"]


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(tmp_path)
