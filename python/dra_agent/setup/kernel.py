"""Writing attributes of /sys that make the kernel act, with a deadline: a driver that waits keeps its writer for ever.

Each device has a thread of its own for as long as one of its writes is on the way, so that one that hangs holds up
nobody else's, and nothing more is asked of it until it comes back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dra_agent.errors import RetryableError

DEADLINE = 15.0
"""Seconds for one write; the kubelet gives a whole prepare call 45."""


class Kernel(Protocol):
    """Takes writes below /sys; the real one, or a simulated host's."""

    def write(self, path: str, text: str) -> None:
        """Write an attribute, named relative to /sys; OSError as the kernel answers. It may never return."""
        ...


class SysfsKernel:
    """The kernel that runs, or at least its /sys."""

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs

    def write(self, path: str, text: str) -> None:
        """Write an attribute in one call, as the kernel wants it; neither makes nor cuts a file."""
        handle = os.open(self._sysfs / path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)


class Writes:
    """Writes with a deadline; safe to use from several threads."""

    def __init__(self, kernel: Kernel, deadline: float = DEADLINE) -> None:
        self._kernel = kernel
        self._deadline = deadline
        self._guard = threading.Lock()
        self._under_way: dict[str, tuple[threading.Thread, str]] = {}

    def write(self, device: str, path: str, text: str) -> None:
        """Write about a device, by its address. OSError as the kernel answers; RetryableError where it does not."""
        answer: list[BaseException] = []

        def ask() -> None:
            try:
                self._kernel.write(path, text)
            except BaseException as error:  # noqa: BLE001 - raised where somebody waits for it
                answer.append(error)

        self._run(device, path, ask)
        if answer:
            raise answer[0]

    def _run(self, device: str, path: str, ask: Callable[[], None]) -> None:
        thread = threading.Thread(target=ask, name=f"write {device}", daemon=True)
        with self._guard:
            before = self._under_way.get(device)
            if before is not None and before[0].is_alive():
                raise hangs(device, before[1])
            self._under_way[device] = (thread, path)
            thread.start()
        thread.join(self._deadline)
        if thread.is_alive():
            raise hangs(device, path)
        with self._guard:
            if self._under_way.get(device, (None, ""))[0] is thread:
                del self._under_way[device]


def hangs(device: str, path: str) -> RetryableError:
    """Say that a write about a device, to an attribute by its path, is still on the way."""
    return RetryableError(
        f"the kernel has not come back from a write to {path.rpartition('/')[2]}: its driver waits for somebody who "
        "still has the device open",
        where=f"device {device}",
        todo="end who uses it (`fuser -v` on its nodes), and look at the kernel's log (dmesg); it goes on then",
    )
