"""The Go oracle, built once for all tests that compare with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from allocator import oracle


@pytest.fixture(scope="session")
def go_allocator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The oracle's binary; the test is skipped where it cannot be built."""
    try:
        return oracle.build(tmp_path_factory.mktemp("oracle"))
    except FileNotFoundError as error:
        pytest.skip(f"no oracle: {error}")
    except subprocess.CalledProcessError as error:
        if "dial tcp" in error.stderr or "proxy" in error.stderr or "lookup" in error.stderr:
            pytest.skip(f"no oracle: its Go modules cannot be fetched: {error.stderr.strip().splitlines()[-1]}")
        raise AssertionError(f"the oracle does not build: {error.stderr}") from error
