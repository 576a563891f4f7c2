"""Access to attributes of /sys that wait for a device's lock in the kernel, with a deadline.

A driver that waits for somebody keeps its writer, and whoever reads what is under the same lock, in a sleep that not
even SIGKILL ends. So each access is made by a process of its own, which holds no lock of the agent's and can be left
behind; the agent's thread only waits for it. Each device has one access at a time: while one is on the way, nothing
more is asked about that device, and nobody else's is held up.
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

TIMEOUT_S = 15.0
"""Seconds for one access; the kubelet gives a whole prepare call 45."""
_MODULE = "dra_agent.device_setup.sysfs_writer"
_T = TypeVar("_T")


class SysfsWriter(Protocol):
    """Takes writes below /sys, and reads of what waits for them; the real one, or a simulated host's."""

    def write(self, path: str, text: str) -> None:
        """Write an attribute, named relative to /sys; OSError as the kernel answers. It may never return."""
        ...

    def read(self, path: str) -> str:
        """Read an attribute that is under the device's lock; OSError as the kernel answers. It may never return."""
        ...


class RealSysfsWriter:
    """The kernel that runs, or at least its /sys."""

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs

    def write(self, path: str, text: str) -> None:
        """Write an attribute in one call, as the kernel wants it; neither makes nor cuts a file."""
        self._access("write", path, text)

    def read(self, path: str) -> str:
        """Read an attribute."""
        return self._access("read", path)

    def _access(self, operation: str, path: str, text: str = "") -> str:
        """Have a child make the access; waited for without end, by a thread that the caller can leave behind."""
        full = self._sysfs / path
        done = subprocess.run(
            child.command(_MODULE, operation, os.fspath(full.absolute())),
            input=text.encode(),
            capture_output=True,
            check=False,
            cwd=child.WORKING_DIRECTORY,
            env=child.environment(),
            start_new_session=True,
        )
        if done.returncode == 0:
            return done.stdout.decode(errors="replace")
        number = done.stderr.decode(errors="replace").strip()
        if not number.isdecimal():
            last = number.splitlines()[-1] if number else f"exit code {done.returncode}"
            raise RetryableError(f"a process that accesses /sys failed: {last}", where=os.fspath(full))
        raise OSError(int(number), os.strerror(int(number)), os.fspath(full))


class TimedWriter:
    """Accesses with a deadline; safe to use from several threads."""

    def __init__(self, kernel: SysfsWriter, deadline: float = TIMEOUT_S) -> None:
        """`deadline` is in seconds."""
        self._kernel = kernel
        self._deadline = deadline
        self._guard = threading.Lock()
        self._under_way: dict[str, tuple[threading.Thread, str, str]] = {}

    def write(self, device: str, path: str, text: str) -> None:
        """Write about a device, by its address. OSError as the kernel answers; RetryableError where it does not."""
        self._run(device, "a write to", path, lambda: self._kernel.write(path, text))

    def read(self, device: str, path: str) -> str:
        """Read about a device. OSError as the kernel answers; RetryableError where it does not."""
        return self._run(device, "a read of", path, lambda: self._kernel.read(path))

    def check(self, device: str) -> None:
        """Refuse to look at a device, by RetryableError, while an access to it has not come back."""
        with self._guard:
            self._check(device)

    def _check(self, device: str) -> None:
        before = self._under_way.get(device)
        if before is not None and before[0].is_alive():
            raise write_timeout_error(device, before[2], before[1])

    def _run(self, device: str, verb: str, path: str, access: Callable[[], _T]) -> _T:
        answer: list[_T] = []
        failure: list[BaseException] = []

        def ask() -> None:
            try:
                answer.append(access())
            except BaseException as error:  # noqa: BLE001 - raised from the future
                failure.append(error)

        thread = threading.Thread(target=ask, name=f"access {device}", daemon=True)
        with self._guard:
            self._check(device)
            self._under_way[device] = (thread, verb, path)
            thread.start()
        thread.join(self._deadline)
        if thread.is_alive():
            raise write_timeout_error(device, path, verb)
        with self._guard:
            if self._under_way.get(device, (None,))[0] is thread:
                del self._under_way[device]
        if failure:
            raise failure[0]
        return answer[0]


def write_timeout_error(device: str, path: str, verb: str = "a write to") -> RetryableError:
    """Say that an access to an attribute of a device, by its path, is still on the way."""
    return RetryableError(
        f"the kernel has not come back from {verb} {path.rpartition('/')[2]}: its driver waits for somebody who "
        "still has the device open",
        where=f"device {device}",
        hint="end who uses it (`fuser -v` on its nodes), and check the kernel log (dmesg); it goes on then",
    )


MAX_BYTES = 4096
"""A page: the kernel gives and takes no more of an attribute in one call."""


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
