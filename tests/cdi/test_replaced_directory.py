"""A CDI directory that the host replaced under a pod's mount: the pod goes on seeing the one that was removed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_agent.agent.liveness import LivenessMonitor
from dra_agent.cdi.directory import SpecDirectory
from dra_agent.errors import RetryableError


@pytest.fixture
def removed(tmp_path: Path) -> Iterator[Path]:
    """Give a path that leads to a directory without a name, as a mount of it does."""
    (tmp_path / "cdi").mkdir()
    handle = os.open(tmp_path / "cdi", os.O_RDONLY | os.O_DIRECTORY)
    (tmp_path / "cdi").rmdir()
    yield Path(f"/proc/self/fd/{handle}")
    os.close(handle)


def test_a_write_says_that_the_directory_was_replaced(removed: Path) -> None:
    with pytest.raises(RetryableError) as refused:
        SpecDirectory(removed, "d.example.com").write("uid", b"{}")
    told = str(refused.value)
    assert "removed or replaced" in told and "restart the agent" in told
    assert "make room" not in told


def test_a_directory_that_is_there_or_not_there_yet_is_not_replaced(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "later", tmp_path / "later"):
        specs = SpecDirectory(path, "d.example.com")
        assert specs.replaced() == ""
        specs.write("uid", b"{}")


def test_liveness_fails_once_it_has_been_so_for_a_while(removed: Path, tmp_path: Path) -> None:
    now = [100.0]
    pulse = LivenessMonitor(lambda: now[0])
    broken = [True]
    gone, there = SpecDirectory(removed, "d.example.com"), SpecDirectory(tmp_path, "d.example.com")
    pulse.watch(lambda: (gone if broken[0] else there).replaced(), 30.0)

    def after(seconds: float) -> list[str]:
        now[0] += seconds
        pulse.heartbeat()
        return pulse.failures()

    assert after(0) == [] and after(29) == []
    assert "removed or replaced" in after(1)[0]
    broken[0] = False
    assert after(1) == []
    broken[0] = True
    assert after(1) == [] and after(29) == []
    assert after(1) != []
