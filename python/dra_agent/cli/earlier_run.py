"""The processes of a `dra-agent claim run`, recorded in its claim, for a later run of the same claim.

A run whose processes were killed leaves its claim, for example if its unit is stopped while the agent is down. Its
command may live on: the claim is not released before its processes have ended.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from dra_agent.errors import NoSuchObjectError, RetryableError
from dra_agent.host import Host
from dra_agent.processes.stat import read_stat, start_time
from dra_agent.standalone.claim import RUN, RUN_PROCESSES

if TYPE_CHECKING:
    from dra_agent.standalone.protocol import Client

CLAIM_UID = "DRA_AGENT_CLAIM_UID"
"""Variable of the command, by which the processes of a run are found: the uid of its claim."""
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
    """Wait until no earlier run has this claim; release it if all processes of that run have ended.

    Returns also if the claim is not one of a run. Raises RetryableError if the run has not ended in time, or if that
    cannot be determined.
    """
    from dra_agent.cli.claim_guard import release

    name = "/".join(key)
    end = time.monotonic() + timeout_s
    announced = ""
    while (view := _view(agent, key)) is not None:
        annotations = view["claim"]["metadata"].get("annotations") or {}
        token, processes = annotations.get(RUN), annotations.get(RUN_PROCESSES)
        if not token or not processes:
            return
        remaining_s = end - time.monotonic()
        was_killed = has_ended(processes)
        left = _left(name, view["uid"]) if was_killed else ""
        message = f"waiting for the earlier run that has claim {name}"
        if was_killed:
            then = f"processes of it hold the claim: {left}" if left else "it is released first"
            message = f"claim {name} is of an earlier run that was killed: {then}"
        if message != announced:
            announced = message
            print(f"dra-agent: {message}", file=sys.stderr)
        if was_killed and not left and release(agent.path, *key, token, timeout_s=max(0.0, remaining_s)):
            continue
        if remaining_s <= 0:
            raise _still_held(name, timeout_s, processes, left, was_killed=was_killed)
        time.sleep(POLL_INTERVAL_S)


def _still_held(name: str, timeout_s: float, processes: str, left: str, *, was_killed: bool) -> RetryableError:
    after, hint = f"after {timeout_s:.0f} s", "end {}, or choose another name with --name"
    if left:
        message = f"processes of an earlier run that was killed have this claim {after}: {left}"
        return RetryableError(message, where=f"claim {name}", hint=hint.format("them"))
    if was_killed:
        message = f"that of an earlier run is still being released {after}"
        return RetryableError(message, where=f"claim {name}", hint="`dra-agent claim list` shows it")
    pids = " or ".join(process.partition(":")[0] for process in processes.split()[1:])
    message = f"another run has this claim {after}: process {pids}"
    return RetryableError(message, where=f"claim {name}", hint=hint.format("it"))


def _left(name: str, uid: str) -> str:
    """Return the names of processes that the command of a killed run has left. Raises RetryableError."""
    from dra_agent.cli.claim_guard import named
    from dra_agent.processes.environment import processes_with
    from dra_agent.processes.tree import descendants

    try:
        found = processes_with(f"{CLAIM_UID}={uid}")
    except OSError as error:
        raise RetryableError(
            f"cannot determine if an earlier run that was killed has left processes: {error}",
            where=f"claim {name}",
            hint="end it, or choose another name with --name",
        ) from error
    own = {os.getpid(), *descendants(os.getpid())}
    return named(pid for pid in found if pid not in own)


def _view(agent: Client, key: tuple[str, str]) -> dict[str, Any] | None:
    """Return a claim; None if it does not exist."""
    from dra_agent.standalone.protocol import Get

    try:
        view: dict[str, Any] = agent.call(Get(*key))
    except NoSuchObjectError:
        return None
    return view


def _scope() -> str:
    """Return the boot and the PID namespace in which numbers of processes are valid."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - not a path
    except OSError:
        namespace = "unknown"
    return f"{Host().boot_id()}/{namespace}"
