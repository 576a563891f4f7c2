"""Runs the measurement in a child process, and removes its processes and its directory however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

KILLED_WITHIN_S = 20.0


def supervise(command: Callable[[Path], Sequence[str]]) -> int:
    """Run `command` with a temporary directory; return its exit status, negative for a signal.

    After its end, after SIGINT and after SIGTERM no process of its group is left, and no directory.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with tempfile.TemporaryDirectory(prefix="fleet-") as directory:
            # etcd and kube-apiserver stay in its group, so they are found after a crash too.
            process = subprocess.Popen(command(Path(directory)), start_new_session=True)
            try:
                return process.wait()
            finally:
                _kill_group(process)
    finally:
        signal.signal(signal.SIGTERM, before)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + KILLED_WITHIN_S
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    while _is_running(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)


def _is_running(group: int) -> bool:
    """Return whether a process of the group runs; one that ended may stay as a zombie until init reaps it."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = path.read_text().rpartition(") ")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                return True
    return False
