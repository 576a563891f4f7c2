"""Benches: hosts that outlive the agents on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from device_setup.vfio.bench import Bench, machine


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, machine())


@pytest.fixture
def bench_of(tmp_path: Path) -> Callable[..., Bench]:
    """A bench whose machine differs: bench_of(iommufd=True)."""
    return lambda **changes: Bench(tmp_path, replace(machine(), **changes))
