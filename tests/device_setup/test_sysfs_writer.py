"""Access to /sys with a deadline: while the kernel has not returned, the device is left alone, and only it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dra_agent.device_setup.sysfs_writer import RealSysfsWriter, TimedWriter
from dra_agent.errors import RetryableError
from eventually import eventually

HUNG, OTHER = "0000:00:04.0", "0000:00:05.0"


class Kernel:
    """Hangs in each access to one device until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.accesses: list[str] = []

    def write(self, path: str, text: str) -> None:
        self.read(path)

    def read(self, path: str) -> str:
        self.accesses.append(path)
        if HUNG in path:
            self.released.wait()
        return path


def accepts(writer: TimedWriter) -> bool:
    try:
        writer.check(HUNG)
    except RetryableError:
        return False
    return True


def test_no_access_follows_one_that_is_pending() -> None:
    kernel = Kernel()
    writer = TimedWriter(kernel, deadline=0.01)
    unbind, override = f"devices/{HUNG}/driver/unbind", f"devices/{HUNG}/driver_override"
    try:
        with pytest.raises(RetryableError, match="a write to unbind has not returned"):
            writer.write(HUNG, unbind, HUNG)
        # The kernel holds the lock of the device: another thread would wait for it as well.
        for access in (
            lambda: writer.read(HUNG, override),
            lambda: writer.write(HUNG, override, ""),
            lambda: writer.check(HUNG),
        ):
            with pytest.raises(RetryableError, match="a write to unbind has not returned"):
                access()
        assert kernel.accesses == [unbind]
    finally:
        kernel.released.set()
    eventually(lambda: accepts(writer))
    patient = TimedWriter(kernel)
    assert patient.read(HUNG, override) == override


def test_a_process_that_is_slow_to_start_is_not_reported_as_a_driver_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent sees only that its child has not ended."""
    end = tmp_path / "end"
    slow = f"until [ -e {end} ]; do sleep 0.01; done"
    monkeypatch.setattr("dra_agent.child.command", lambda *arguments: ["/bin/sh", "-c", slow])
    writer = TimedWriter(RealSysfsWriter(tmp_path), deadline=0.01)
    try:
        with pytest.raises(RetryableError) as refused:
            writer.write(HUNG, f"devices/{HUNG}/driver/unbind", HUNG)
    finally:
        end.touch()
        eventually(lambda: accepts(writer))
    message = str(refused.value)
    assert "the kernel has not" not in message and "its driver waits" not in message
    assert "a write to unbind has not returned" in message and "or the host is too busy" in message


def test_another_device_is_accessed_meanwhile() -> None:
    kernel = Kernel()
    writer = TimedWriter(kernel, deadline=0.01)
    try:
        with pytest.raises(RetryableError):
            writer.read(HUNG, f"devices/{HUNG}/vendor")
        writer.check(OTHER)
        assert TimedWriter(kernel).read(OTHER, f"devices/{OTHER}/vendor") == f"devices/{OTHER}/vendor"
    finally:
        kernel.released.set()
