"""Changes a simulated host while an agent runs on it: unplugs devices, raises errors, makes library calls hang.

Each change is made under one lock, and every file is replaced by rename, so concurrent readers see the host before or
after it, never a partial file.
"""

from __future__ import annotations

from dra_simulate.inject.faults import answer_write, clear, delay, fail, hang, kill, latency
from dra_simulate.inject.gpu import (
    FABRIC_FAILURES,
    FABRIC_STATES,
    RECOVERY_ACTIONS,
    RECOVERY_EVENT,
    event,
    fabric,
    nvlinks,
    recovery,
    reset,
    set_access,
    xid,
)
from dra_simulate.inject.plug import replug, unplug
from dra_simulate.inject.target import find
from dra_simulate.inject.usage import end_process, load, play, skip, start_process, traffic

__all__ = [
    "FABRIC_FAILURES",
    "FABRIC_STATES",
    "RECOVERY_ACTIONS",
    "RECOVERY_EVENT",
    "answer_write",
    "clear",
    "delay",
    "end_process",
    "event",
    "fabric",
    "fail",
    "find",
    "hang",
    "kill",
    "latency",
    "load",
    "nvlinks",
    "play",
    "recovery",
    "replug",
    "reset",
    "set_access",
    "skip",
    "start_process",
    "traffic",
    "unplug",
    "xid",
]
