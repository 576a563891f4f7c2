"""flock(2) with a deadline. The kernel has no such call, so the lock is tried again after growing pauses."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable

from dra_agent.deadline import Deadline
from dra_agent.retry import growing_wait

FIRST_PAUSE_S = 0.001
MAX_PAUSE_S = 0.05
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file at once; False where another one has it. Raises OSError for everything else."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(handle: int, deadline: Deadline, attempt: Callable[[int], bool] = try_lock) -> bool:
    """Lock an open file; False where that was not possible until the deadline. It is tried once in any case.

    `attempt` is one try: another one than `try_lock` may be content with a shared lock. Raises OSError as flock(2).
    """
    failures = 0
    while not attempt(handle):
        remaining_s = deadline.remaining()
        if not remaining_s:
            return False
        time.sleep(min(growing_wait(failures, first_s=FIRST_PAUSE_S, max_s=MAX_PAUSE_S), remaining_s))
        failures += 1
    return True


def keep_private(handle: int) -> None:
    """Remove the permissions of other users: a process that can open a file can lock it. Raises OSError."""
    mode = os.fstat(handle).st_mode
    if mode & _OTHERS:
        os.fchmod(handle, stat.S_IMODE(mode) & ~_OTHERS)
