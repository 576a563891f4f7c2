"""The Go oracle, built once for all tests that compare with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocator import oracle
from oracle import go


@pytest.fixture(scope="session")
def go_allocator() -> Path:
    """The oracle's binary; the test is skipped if it cannot be built."""
    return go.build(oracle.SOURCE, "allocator")
