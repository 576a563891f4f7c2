"""The processes of a `dra-agent claim run`, recorded in its claim, for a later run of the same claim.

A run whose processes were killed leaves its claim, for example if its unit is stopped while the agent is down.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dra_agent.errors import NoSuchObjectError, RetryableError
from dra_agent.processes.stat import read_stat, start_time
from dra_agent.standalone.claim import RUN, RUN_PROCESSES

if TYPE_CHECKING:
    from dra_agent.standalone.protocol import Client

POLL_INTERVAL_S = 0.2
"""Between two checks whether the earlier run has released its claim."""


def record(*pids: int) -> str:
    """Return the value of the annotation for these processes of a run."""
    return " ".join([_scope(), *(f"{pid}:{start_time(pid)}" for pid in pids)])


def has_ended(value: str) -> bool:
    """Return whether none of the recorded processes exists; False if that is not known, as in another container."""
    boot, _, rest = value.partition("/")
    namespace, *processes = rest.split()
    own_boot, _, own_namespace = _scope().partition("/")
    if boot != own_boot:
        return True
    if namespace != own_namespace:
        return False
    recorded = [process.partition(":") for process in processes]
    return not any(pid.isdecimal() and _runs(int(pid), started) for pid, _, started in recorded)


def _runs(pid: int, started: str) -> bool:
    try:
        stat = read_stat(pid)
    except (OSError, ValueError):
        return True
    return stat is not None and str(stat.started) == started and not stat.has_ended


def await_end(agent: Client, key: tuple[str, str], timeout_s: float) -> None:
    """Wait until no earlier run has this claim; release it if the processes of that run have ended.

    Returns also if the claim is not one of a run. Raises RetryableError if the run has not ended in time.
    """
    from dra_agent.cli.claim_guard import release

    name = "/".join(key)
    end = time.monotonic() + timeout_s
    announced = ""
    while (annotations := _annotations(agent, key)) is not None:
        token, processes = annotations.get(RUN), annotations.get(RUN_PROCESSES)
        if not token or not processes:
            return
        remaining_s = end - time.monotonic()
        was_killed = has_ended(processes)
        killed = f"claim {name} is of an earlier run that was killed: it is released first"
        message = killed if was_killed else f"waiting for the earlier run that has claim {name}"
        if message != announced:
            announced = message
            print(f"dra-agent: {message}", file=sys.stderr)
        if was_killed:
            release(agent.path, *key, token, timeout_s=max(0.0, remaining_s))
        if remaining_s <= 0:
            pids = " or ".join(process.partition(":")[0] for process in processes.split()[1:])
            raise RetryableError(
                f"another run has this claim after {timeout_s:.0f} s: process {pids}",
                where=f"claim {name}",
                hint="end it, or choose another name with --name",
            )
        time.sleep(POLL_INTERVAL_S)


def _annotations(agent: Client, key: tuple[str, str]) -> dict[str, Any] | None:
    """Return the annotations of a claim; None if it does not exist."""
    from dra_agent.standalone.protocol import Get

    try:
        claim = agent.call(Get(*key))["claim"]
    except NoSuchObjectError:
        return None
    return claim["metadata"].get("annotations") or {}


def _scope() -> str:
    """Return the boot and the PID namespace in which numbers of processes are valid."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - not a path
    except OSError:
        namespace = "unknown"
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = "unknown"
    return f"{boot}/{namespace}"
