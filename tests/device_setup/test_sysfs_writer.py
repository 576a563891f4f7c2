"""Access to /sys with a deadline: while the kernel has not returned, the device is left alone, and only it."""

from __future__ import annotations

import threading

import pytest

from dra_agent.device_setup.sysfs_writer import TimedWriter
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


def test_no_access_follows_one_that_is_pending() -> None:
    kernel = Kernel()
    writer = TimedWriter(kernel, deadline=0.01)
    unbind, override = f"devices/{HUNG}/driver/unbind", f"devices/{HUNG}/driver_override"
    try:
        with pytest.raises(RetryableError, match="has not returned from a write to unbind"):
            writer.write(HUNG, unbind, HUNG)
        # The kernel holds the lock of the device: another thread would wait for it as well.
        for access in (
            lambda: writer.read(HUNG, override),
            lambda: writer.write(HUNG, override, ""),
            lambda: writer.check(HUNG),
        ):
            with pytest.raises(RetryableError, match="has not returned from a write to unbind"):
                access()
        assert kernel.accesses == [unbind]
    finally:
        kernel.released.set()

    def is_accepted() -> bool:
        try:
            writer.check(HUNG)
        except RetryableError:
            return False
        return True

    eventually(is_accepted)
    patient = TimedWriter(kernel)
    assert patient.read(HUNG, override) == override


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
