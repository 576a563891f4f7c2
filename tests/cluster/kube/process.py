"""One program that runs in the background, with its log; whoever starts it ends it, by its process id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

MARK = "DRA_TEST_CLUSTER"
"""The environment variable that says which cluster a process belongs to."""

LONG = 600.0
"""Seconds after which something counts as what never comes: far longer than it takes on any machine.

Some of it takes its time on every machine: a kubelet asks again for what failed after 60 to 90 s, and a pod whose event
the scheduler has missed waits in its queue of unschedulable pods for 5 minutes.

A wait with this deadline asserts that something happens, not how fast. How fast is asserted by what `until` returns.
"""


class Process:
    """A program that can be ended and started again with the same arguments; its log grows over all its lives."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, owner: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.environment = {**os.environ, **(environment or {}), MARK: str(owner)}
        self.popen: subprocess.Popen[bytes] | None = None
        self.began_at = 0
        """Where in the log the present life begins, in bytes."""

    def start(self) -> None:
        """Start it; it gets a session of its own, so that a Ctrl-C ends the tests and then, in order, the cluster."""
        assert not self.running, f"{self.name} runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.began_at = log.tell()
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
        """Whether it has been started and has not ended."""
        return self.popen is not None and self.popen.poll() is None

    @property
    def pid(self) -> int:
        """The id of the present or last process."""
        assert self.popen is not None, f"{self.name} was never started"
        return self.popen.pid

    def end(self, number: int = signal.SIGTERM, at_most: float = LONG) -> int | None:
        """Send the signal and wait; after `at_most` seconds SIGKILL. Returns the exit code, None if never started."""
        if self.popen is None:
            return None
        if self.popen.poll() is None:
            self.popen.send_signal(number)
            try:
                self.popen.wait(at_most)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        return self.popen.wait(LONG)

    def signal(self, number: int) -> None:
        """Send a signal and do not wait: SIGSTOP, SIGCONT."""
        assert self.popen is not None, f"{self.name} was never started"
        self.popen.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.end(signal.SIGKILL)

    def said(self, *, this_life: bool = True) -> str:
        """Its log, of its present life only unless asked otherwise."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self.began_at if this_life else 0)
            return log.read().decode(errors="replace")

    def tail(self, lines: int = 40) -> str:
        """The end of its log, for people."""
        return "\n".join(self.said(this_life=False).splitlines()[-lines:])

    def alive(self) -> None:
        """Fail with the end of the log where the process has ended by itself."""
        assert self.running, f"{self.name} ended with {self.popen and self.popen.returncode}:\n{self.tail()}"


def until(condition: Callable[[], object], what: str, at_most: float = LONG, *, every: float = 0.05) -> float:
    """Wait until the condition gives something true and return how many seconds that took; AssertionError if never.

    An AssertionError, LookupError or OSError of the condition counts as not yet, and is said when the time is over.
    """
    began = time.monotonic()
    while True:
        last: Exception | None = None
        try:
            if condition():
                return time.monotonic() - began
        except (AssertionError, LookupError, OSError) as error:
            last = error
        if time.monotonic() - began > at_most:
            raise AssertionError(f"not within {at_most:g} s: {what}" + (f" ({last})" if last else "")) from last
        time.sleep(every)


def owned(owner: Path) -> list[int]:
    """The processes of a cluster that run, whoever started them: those that this module did, and their children."""
    mark = f"{MARK}={owner}".encode()
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
    return found
