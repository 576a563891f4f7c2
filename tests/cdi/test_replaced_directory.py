"""A CDI directory that the host replaced under a pod's mount: the pod still sees the removed one."""

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
    """A path to a directory without a name, as a mount of a removed directory."""
    (tmp_path / "cdi").mkdir()
    handle = os.open(tmp_path / "cdi", os.O_RDONLY | os.O_DIRECTORY)
    (tmp_path / "cdi").rmdir()
    yield Path(f"/proc/self/fd/{handle}")
    os.close(handle)


def test_a_write_reports_the_replaced_directory(removed: Path) -> None:
    with pytest.raises(RetryableError) as error:
        SpecDirectory(removed, "d.example.com").write("uid", b"{}")
    message = str(error.value)
    assert "removed or replaced" in message and "restart the agent" in message
    assert "make room" not in message


def test_existing_and_missing_directories_are_not_replaced(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "later", tmp_path / "later"):
        specs = SpecDirectory(path, "d.example.com")
        assert specs.replaced_reason() is None
        specs.write("uid", b"{}")


def test_liveness_fails_after_a_grace_period(removed: Path, tmp_path: Path) -> None:
    now = [100.0]
    monitor = LivenessMonitor(lambda: now[0])
    broken = [True]
    removed_directory, existing_directory = (
        SpecDirectory(removed, "d.example.com"),
        SpecDirectory(tmp_path, "d.example.com"),
    )
    monitor.watch(lambda: (removed_directory if broken[0] else existing_directory).replaced_reason(), 30.0)

    def after(seconds: float) -> list[str]:
        now[0] += seconds
        monitor.heartbeat()
        return monitor.failures()

    assert after(0) == [] and after(29) == []
    assert "removed or replaced" in after(1)[0]
    broken[0] = False
    assert after(1) == []
    broken[0] = True
    assert after(1) == [] and after(29) == []
    assert after(1) != []
