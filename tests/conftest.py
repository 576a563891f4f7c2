"""Fixtures of all test folders."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import dra_simulate
import permissions
import preloaded
from dra_agent.host import Host
from fake_apiserver.fixture import fake_api
from leftovers import (
    mark_processes,
    nothing_left_behind,
    pytest_runtest_protocol,
    pytest_sessionfinish,
    pytest_terminal_summary,
)
from recordings.pack import unpack
from temporary_files import keep_in_memory
from tiers import Tiers

__all__ = [
    "fake_api",
    "nothing_left_behind",
    "pytest_runtest_protocol",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
]

keep_in_memory()

# The time to draw examples depends on the load of the machine only.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")


def pytest_configure(config: pytest.Config) -> None:
    """Start what watches the whole run."""
    config.pluginmanager.register(permissions.Obeyed())
    mark_processes(config)
    config.pluginmanager.register(Tiers(config))


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
def recorded_host(tmp_path: Path, request: pytest.FixtureRequest) -> Host:
    """Return a host of a committed recording, named by indirect parametrization, that the test may change."""
    return dra_simulate.build(str(unpack(request.param, tmp_path)), tmp_path / "host")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for sockets: paths of unix sockets have at most 107 bytes, and `tmp_path` can be long."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        yield Path(folder)


@pytest.fixture
def kubelet_dir(short_path: Path) -> Path:
    """The root directory of a kubelet that does not exist yet."""
    return short_path / "k"
