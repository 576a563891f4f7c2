"""Fixtures of all test folders."""

from __future__ import annotations

import gc
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import preloaded
from fake_apiserver.fixture import fake_api
from leftovers import (
    mark_processes,
    nothing_left_behind,
    pytest_runtest_protocol,
    pytest_sessionfinish,
    pytest_terminal_summary,
)
from temporary_files import keep_in_memory
from tiers import Tiers

__all__ = [
    "fake_api",
    "nothing_left_behind",
    "pytest_runtest_protocol",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
]

RECORDED = Path(__file__).resolve().parents[2] / "shared" / "fixtures"

keep_in_memory()

# The time to draw examples depends on the load of the machine only.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")


def pytest_configure(config: pytest.Config) -> None:
    """Start what watches the whole run."""
    mark_processes(config)
    config.pluginmanager.register(Tiers())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exclude collected tests from garbage collection, which `leftovers` runs after each test that opens files.

    Collection creates few cycles; without garbage collection it takes a quarter less CPU time, in each worker.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def preloaded_process() -> Iterator[None]:
    """The process that forks commands and children of the agent; the first of them in a worker starts it."""
    preloaded.fork_children(preloaded.fork)
    yield
    preloaded.close()


@pytest.fixture
def real_children() -> Iterator[None]:
    """Child processes of this process and of agents are new interpreters, and children of the agent for the kernel."""
    with preloaded.start_interpreters():
        yield


@pytest.fixture
def recorded_host(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Unpack a recorded machine, named by indirect parametrization; skips without the recordings."""
    archive = RECORDED / f"{request.param}.tar.xz"
    if not archive.exists():
        pytest.skip(f"recorded machine {request.param} is not available ({archive})")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="fully_trusted")
    for path in tmp_path.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o700 if path.is_dir() else 0o400))
    return tmp_path


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for sockets: paths of unix sockets have at most 107 bytes, and `tmp_path` can be long."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        yield Path(folder)


@pytest.fixture
def kubelet_dir(short_path: Path) -> Path:
    """The root directory of a kubelet that does not exist yet."""
    return short_path / "k"
