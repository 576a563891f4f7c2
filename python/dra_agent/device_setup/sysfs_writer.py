"""Access, with a deadline, to attributes of /sys that wait for a device's lock in the kernel.

A driver that hangs blocks its writer, and readers of attributes under the same lock, in an uninterruptible sleep that
even SIGKILL does not end. So each access is made by a separate process, which holds no lock of the agent and can be
abandoned; the agent's thread only waits for it. Each device has one access at a time: while it is pending, further
accesses to that device are rejected, and other devices are unaffected.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from dra_agent import child
from dra_agent.errors import RetryableError
from dra_agent.threads import start_thread

TIMEOUT_S = 15.0
"""Maximum seconds for one access; the kubelet has 45 for a whole prepare call."""
_MODULE = "dra_agent.device_setup.sysfs_writer"
_T = TypeVar("_T")


class SysfsWriter(Protocol):
    """Writes below /sys, and reads of attributes that wait for them.

    Implementations: of the kernel, of simulated hosts, and of recordings.
    """

    def write(self, path: str, text: str) -> None:
        """Write an attribute, by its path relative to /sys; raises the OSError of the kernel. It may never return."""
        ...

    def read(self, path: str) -> str:
        """Read an attribute that is under the device's lock; raises the OSError of the kernel. It may never return."""
        ...


class RealSysfsWriter:
    """The running kernel, or at least its /sys."""

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs

    def write(self, path: str, text: str) -> None:
        """Write an attribute in one call, as the kernel requires; it neither creates nor truncates a file."""
        self._access("write", path, text)

    def read(self, path: str) -> str:
        """Read an attribute."""
        return self._access("read", path)

    def _access(self, operation: str, path: str, text: str = "") -> str:
        """Make the access in a child process; waits without a deadline, on a thread that the caller can abandon."""
        full = self._sysfs / path
        completed = subprocess.run(
            child.command(_MODULE, operation, os.fspath(full.absolute())),
            input=text.encode(),
            capture_output=True,
            check=False,
            cwd=child.WORKING_DIRECTORY,
            env=child.environment(),
            start_new_session=True,
        )
        if completed.returncode == 0:
            return completed.stdout.decode(errors="replace")
        number = completed.stderr.decode(errors="replace").strip()
        if not number.isdecimal():
            last = number.splitlines()[-1] if number else f"exit code {completed.returncode}"
            raise RetryableError(f"a process that accesses /sys failed: {last}", where=os.fspath(full))
        raise OSError(int(number), os.strerror(int(number)), os.fspath(full))


class TimedWriter:
    """Accesses with a deadline; thread-safe."""

    def __init__(self, kernel: SysfsWriter, deadline: float | None = None) -> None:
        """`deadline` is in seconds, `TIMEOUT_S` by default."""
        self._kernel = kernel
        self._deadline = TIMEOUT_S if deadline is None else deadline
        self._lock = threading.Lock()
        self._pending: dict[str, tuple[threading.Thread, str, str]] = {}

    def write(self, device: str, path: str, text: str) -> None:
        """Write an attribute of a device, by its address. OSError of the kernel; RetryableError at the deadline."""
        self._run(device, "a write to", path, lambda: self._kernel.write(path, text))

    def read(self, device: str, path: str) -> str:
        """Read an attribute of a device. OSError of the kernel; RetryableError at the deadline."""
        return self._run(device, "a read of", path, lambda: self._kernel.read(path))

    def check(self, device: str) -> None:
        """Raise RetryableError while an access to the device is pending."""
        with self._lock:
            self._check(device)

    def _check(self, device: str) -> None:
        pending = self._pending.get(device)
        if pending is not None and pending[0].is_alive():
            raise write_timeout_error(device, pending[2], pending[1])

    def _run(self, device: str, verb: str, path: str, access: Callable[[], _T]) -> _T:
        results: list[_T] = []
        failure: list[BaseException] = []

        def access_and_store() -> None:
            try:
                results.append(access())
            except BaseException as error:  # noqa: BLE001 - raised from the future
                failure.append(error)

        with self._lock:
            self._check(device)
            thread = start_thread(f"access {device}", access_and_store)
            self._pending[device] = (thread, verb, path)
        thread.join(self._deadline)
        if thread.is_alive():
            raise write_timeout_error(device, path, verb)
        with self._lock:
            if self._pending.get(device, (None,))[0] is thread:
                del self._pending[device]
        if failure:
            raise failure[0]
        return results[0]


def write_timeout_error(device: str, path: str, verb: str = "a write to") -> RetryableError:
    """Return the error for a pending access to an attribute of a device, by its path."""
    return RetryableError(
        f"{verb} {path.rpartition('/')[2]} has not returned: its driver may wait for a process that still has the "
        "device open, or the host is too busy to run the process of the agent that makes the access",
        where=f"device {device}",
        hint="stop the processes that use it (`fuser -v` on its nodes), and check the load and the kernel log (dmesg)",
    )


MAX_BYTES = 4096
"""A page: the kernel's maximum for an attribute in one call."""


def main() -> None:
    """Make the access."""
    operation, path = sys.argv[1:]
    try:
        if operation == "write":
            handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            os.write(handle, sys.stdin.buffer.read(MAX_BYTES))
        else:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            sys.stdout.buffer.write(os.read(handle, MAX_BYTES))
    except OSError as error:
        sys.stderr.write(str(error.errno))
        sys.exit(1)


if __name__ == "__main__":
    main()
