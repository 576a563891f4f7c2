"""A background process with its log; its starter stops it, by process id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

MARK = "DRA_TEST_CLUSTER"
"""The environment variable that names the cluster of a process."""

LONG_TIMEOUT_S = 600.0
"""Seconds after which a wait fails: far longer than needed on any machine.

Some waits are long on every machine: a kubelet retries failures after 60 to 90 s, and a pod whose event the scheduler
has missed waits in its queue of unschedulable pods for 5 minutes.

A wait with this deadline asserts that something happens, not how fast. The return value of `until` is for that.
"""


class Process:
    """A process that can be stopped and started again with the same arguments; its log covers all runs."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, owner: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.environment = {**os.environ, **(environment or {}), MARK: str(owner)}
        self.popen: subprocess.Popen[bytes] | None = None
        self.run_offset = 0
        """The offset in the log at which the current run begins, in bytes."""

    def start(self) -> None:
        """Start it in its own session, so that Ctrl-C ends the tests and then, in order, the cluster."""
        assert not self.running, f"{self.name} runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.run_offset = log.tell()
            self.popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.popen is not None and self.popen.poll() is None

    @property
    def pid(self) -> int:
        """The id of the current or last process."""
        assert self.popen is not None, f"{self.name} was never started"
        return self.popen.pid

    def end(self, number: int = signal.SIGTERM, timeout_s: float = LONG_TIMEOUT_S) -> int | None:
        """Send the signal and wait; SIGKILL after `timeout_s`. Return the exit code, None if never started."""
        if self.popen is None:
            return None
        if self.popen.poll() is None:
            self.popen.send_signal(number)
            try:
                self.popen.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        return self.popen.wait(LONG_TIMEOUT_S)

    def signal(self, number: int) -> None:
        """Send a signal without waiting: SIGSTOP, SIGCONT."""
        assert self.popen is not None, f"{self.name} was never started"
        self.popen.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended."""
        self.end(signal.SIGKILL)

    def read_log(self, *, current_run: bool = True) -> str:
        """Return its log, by default of the current run only."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self.run_offset if current_run else 0)
            return log.read().decode(errors="replace")

    def tail(self, lines: int = 40) -> str:
        """Return the end of its log, for failure messages."""
        return "\n".join(self.read_log(current_run=False).splitlines()[-lines:])

    def check_running(self) -> None:
        """Raise EndedError with the end of the log if the process has ended."""
        if not self.running:
            raise EndedError(f"{self.name} ended with {self.popen and self.popen.returncode}:\n{self.tail()}")


class EndedError(Exception):
    """A process has ended on which a scenario depends. `until` does not wait any longer then."""


def until(
    condition: Callable[[], object], what: str, timeout_s: float = LONG_TIMEOUT_S, *, every: float = 0.05
) -> float:
    """Wait until the condition returns a true value and return the seconds; AssertionError after `timeout_s`.

    An AssertionError, LookupError or OSError of the condition counts as not yet, and the last one is reported.
    """
    started = time.monotonic()
    while True:
        last: Exception | None = None
        try:
            if condition():
                return time.monotonic() - started
        except (AssertionError, LookupError, OSError) as error:
            last = error
        if time.monotonic() - started > timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}" + (f" ({last})" if last else "")) from last
        time.sleep(every)


def owned(owner: Path) -> list[int]:
    """Return the running processes of a cluster: those that this module started, and their children."""
    mark = f"{MARK}={owner}".encode()
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
    return found
