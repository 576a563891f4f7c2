from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dra_simulate
from dra_simulate import inject


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("nvml") / "vm"
    dra_simulate.build("vm-1gpu", root)
    return root


@pytest.fixture
def root(host: Path) -> Iterator[Path]:
    yield host
    inject.clear(host)
