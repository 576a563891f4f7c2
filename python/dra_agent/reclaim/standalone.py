"""Drain of a host without Kubernetes: claims are released in a bounded time and wait in their old order.

When the notice is withdrawn, or after the next boot, they are allocated again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence

from dra_agent.clock import STEADY
from dra_agent.command import inherited_environment
from dra_agent.errors import SHORTAGES
from dra_agent.path_search import executable
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.settings import ReclaimSettings
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.status import ClaimReleaseStatus, Progress
from dra_agent.standalone.claim import ClaimView
from dra_agent.standalone.service import StandaloneService
from dra_agent.supervisor import supervisor

log = logging.getLogger(__name__)

SHORTAGE_RETRY_S = 0.25
"""Seconds until a program is started again for which the system had no room."""
_MAX_CONCURRENT_HOOKS = 16


async def run_hooks(command: Sequence[str], claims: Sequence[Mapping[str, str]], timeout_s: float) -> dict[str, str]:
    """Run the program for each claim, several at once, all within `timeout_s` seconds.

    `claims` are the variables that identify the claim. Without a configured program nothing happens. Failures
    are logged and returned by the claims' uids.
    """
    failures: dict[str, str] = {}
    if not command or not claims:
        return failures
    slots = asyncio.Semaphore(_MAX_CONCURRENT_HOOKS)
    end = asyncio.get_running_loop().time() + timeout_s
    # A group that is cancelled waits for each of them to end, gather only for the first.
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
            # A timeout in the past cancels at the next wait, which may be after the start of the program.
            if asyncio.get_running_loop().time() >= end:
                raise TimeoutError
            process = await _start(command, claim, end)
            code = await process.wait()
    except TimeoutError:
        what = "was not started in time" if process is None else "took too long and was killed"
        failures[uid] = f"its hook {what}"
        log.error(f"the hook {what}", extra=extra)
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


async def _start(command: Sequence[str], claim: Mapping[str, str], end: float) -> asyncio.subprocess.Process:
    """Start a program once the system has room for it. Raises OSError without room until the end, or otherwise."""
    while True:
        try:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                executable=executable(command[0]),
                env=inherited_environment(claim),
                start_new_session=True,
            )
        except OSError as error:
            is_last = asyncio.get_running_loop().time() + SHORTAGE_RETRY_S >= end
            if is_last or error.errno not in SHORTAGES:
                raise
        await asyncio.sleep(SHORTAGE_RETRY_S)


NOTIFY_INTERVAL_S = 0.5
"""Seconds between two notifications of the sources that every claim is released. Repeated, because a source may start
to wait for it later, as an orderly shutdown after a spot notice does."""
RECHECK_INTERVAL_S = 2.0
"""Maximum seconds between two checks of the claims, if the standalone service takes no step."""


class StandaloneDrain:
    """Acts on each change of the state."""

    def __init__(
        self,
        settings: Callable[[], ReclaimSettings],
        reclaim: ReclaimService,
        service: StandaloneService,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`settings` returns those in effect. `on_change` is called when `draining` may have changed."""
        self._settings = settings
        self._reclaim = reclaim
        self._service = service
        self._on_change = on_change
        self._records: dict[str, ClaimReleaseStatus] = {}
        self._complete = False
        self._is_hooked = False
        """Whether the hooks of this notice have run: they do not run again if its release starts again."""
        self._task: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Called before claims are served, so that claims of a reclaimed node are not prepared first."""
        self._reclaim.attach_drain(self)
        self._reclaim.on_change(self._changed)
        if self._reclaim.state.phase == "notice":
            await self._service.suspend(_why(self._reclaim.state), release=False)

    def start(self) -> None:
        """Called once claims are served: continue what an earlier run started."""
        if self._reclaim.state.phase == "notice":
            self._begin()

    @property
    def progress(self) -> Progress:
        """Progress of the release of claims. See reclaim.service.Drain."""
        return Progress(claims=tuple(self._records.values()), complete=self._complete)

    @property
    def draining(self) -> bool:
        """Whether claims are being released."""
        return self._reclaim.state.phase == "notice" and not self._complete

    async def stop(self) -> None:
        """Stop without changes."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _changed(self, before: ReclaimState, after: ReclaimState) -> None:
        self._on_change()
        if (before.phase == "notice") == (after.phase == "notice"):
            if after.phase == "notice":
                await self._service.change_reason(_why(after))
            return
        await self.stop()
        if after.phase == "notice":
            self._begin()
        else:
            self._records.clear()
            # Not waited for, as nothing here: a vendor library that hangs must not delay the next change.
            self._task = supervisor().loop("reclaim resume", self._service.resume)

    def _begin(self) -> None:
        self._complete = self._is_hooked = False
        self._task = supervisor().loop("reclaim release", self._release_claims)

    async def _release_claims(self) -> None:
        await self._service.suspend(_why(self._reclaim.state), release=False)
        if not self._is_hooked:
            await self._run_hooks()
        await self._service.suspend(_why(self._reclaim.state), release=True)
        await self._wait_released()
        self._complete = True
        self._on_change()
        log.info("every claim is released and waits for the next host", extra={"claims": len(self._records)})
        while True:
            await self._reclaim.released()
            await asyncio.sleep(NOTIFY_INTERVAL_S)

    async def _run_hooks(self) -> None:
        allocated = await self._service.allocated()
        now = STEADY.now()
        self._records = {view.uid: ClaimReleaseStatus(view.uid, view.namespace, view.name, now) for view in allocated}
        variables = [self._variables(view) for view in allocated]
        self._is_hooked = True
        failures = await run_hooks(self._settings().hook, variables, self._hook_timeout_s())
        for uid, failure in failures.items():
            self._records[uid].unknown = failure

    async def _wait_released(self) -> None:
        steps = self._service.steps
        count = steps.count
        while not await self._compare_claims():
            await steps.wait_after(count, RECHECK_INTERVAL_S)
            count = steps.count

    async def _compare_claims(self) -> bool:
        """Record which claims are released; return whether all are."""
        allocated = {view.uid for view in await self._service.allocated()}
        now = STEADY.now()
        for uid, record in self._records.items():
            if uid not in allocated and record.released is None:
                record.unprepared = record.released = now
        return not allocated

    def _hook_timeout_s(self) -> float:
        hook_s, remaining_s = self._settings().hook_seconds, self._reclaim.seconds_left
        return hook_s if remaining_s is None else max(0.0, min(hook_s, remaining_s))

    def _variables(self, view: ClaimView) -> dict[str, str]:
        state = self._reclaim.state
        cause, deadline = state.cause, state.deadline
        return {
            "DRA_AGENT_CLAIM_UID": view.uid,
            "DRA_AGENT_CLAIM_NAME": view.name,
            "DRA_AGENT_CLAIM_NAMESPACE": view.namespace,
            "DRA_AGENT_CLAIM_DEVICES": " ".join(view.cdi_device_ids),
            "DRA_AGENT_RECLAIM_SOURCE": "" if cause is None else cause.source,
            "DRA_AGENT_RECLAIM_DEADLINE": ""
            if deadline is None
            else STEADY.to_wall(deadline).isoformat(timespec="seconds"),
        }


def _why(state: ReclaimState) -> str:
    cause = state.cause
    by = f" ({cause.source}: {cause.description})" if cause is not None else ""
    return f"this node is being reclaimed{by}"
