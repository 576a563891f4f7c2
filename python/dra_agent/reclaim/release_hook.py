"""The operator's program that is run for a claim before it is released: it stops what uses the claim's devices.

No shell, no input; what it prints goes where the agent's log goes. It is killed, with what it has started, when its
time is over: a release never waits longer than that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)

_MOST_AT_ONCE = 16


async def run_hooks(command: Sequence[str], claims: Sequence[Mapping[str, str]], at_most: float) -> dict[str, str]:
    """Run the program for each claim, several at once, all within `at_most` seconds.

    `claims` are the variables that tell the program which claim it is for. Without a program nothing happens. Failures
    are logged; gives them by the claims' uids.
    """
    failures: dict[str, str] = {}
    if not command or not claims:
        return failures
    slots = asyncio.Semaphore(_MOST_AT_ONCE)
    end = asyncio.get_running_loop().time() + at_most
    # A group that is called off waits for each of them to end, gather only for the first.
    async with asyncio.TaskGroup() as hooks:
        for claim in claims:
            hooks.create_task(_run(command, claim, slots, end, failures))
    return failures


async def _run(
    command: Sequence[str],
    claim: Mapping[str, str],
    slots: asyncio.Semaphore,
    end: float,
    failures: dict[str, str],
) -> None:
    uid = claim.get("DRA_AGENT_CLAIM_UID", "")
    extra = {"claim": uid, "command": command[0]}
    process: asyncio.subprocess.Process | None = None
    try:
        async with asyncio.timeout_at(end), slots:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, **claim},
                start_new_session=True,
            )
            code = await process.wait()
    except TimeoutError:
        failures[uid] = "its hook took too long and was killed"
        log.error("the hook took too long and was killed", extra=extra)
    except OSError as error:
        failures[uid] = f"its hook cannot be run: {error.strerror or error}"
        log.error("the hook cannot be run", extra={**extra, "reason": error.strerror or str(error)})
    else:
        if code != 0:
            failures[uid] = f"its hook ended with {code}"
        level = logging.INFO if code == 0 else logging.ERROR
        log.log(level, "the hook has ended", extra={**extra, "code": code})
    finally:
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
