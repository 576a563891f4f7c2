"""Prepares one waiting claim, and distinguishes failures of its devices from others.

What may succeed later is repeated until the deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from dra_agent.deadline import CALL_TIMEOUT_S, Deadline
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.prepare import ClaimPreparer
from dra_agent.retry import Backoff
from dra_agent.supervisor import on_thread

log = logging.getLogger(__name__)

LEAST_S = 10.0
"""Minimum seconds for a claim, also if this agent started long after the allocation."""
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 15.0


class Failure(NamedTuple):
    """Why a claim is not prepared."""

    reason: str
    """One word in CamelCase."""
    message: str
    is_of_devices: bool
    """False: the claim itself is invalid, or the node is leaving. Its devices work."""


class WithdrawnError(Exception):
    """The claim is not allocated to these devices any more, or its pod does not wait."""


class Attempt:
    """Prepares claims on threads. Lives on the event loop."""

    def __init__(
        self,
        preparer: ClaimPreparer,
        check: Callable[[dict[str, Any]], None],
        *,
        refusal: Callable[[], str] = lambda: "",
        least_s: float = LEAST_S,
    ) -> None:
        """`check` raises PermanentError for a claim that no device could satisfy.

        `refusal` returns why this node takes no new claims; empty where it takes them. A call may take `least_s`
        seconds, also if less time remains.
        """
        self._preparer = preparer
        self._check = check
        self._refusal = refusal
        self._least_s = least_s

    async def prepare(
        self, claim: dict[str, Any], deadline: Deadline, still_waiting: Callable[[], Awaitable[bool]]
    ) -> Failure | None:
        """Prepare a claim; None once it is prepared.

        At least one attempt is made, also after the deadline. `still_waiting` is asked before each further one.
        Raises WithdrawnError if it returns False.
        """
        try:
            await on_thread(self._check, claim)
        except PermanentError as error:
            return Failure("InvalidClaim", error.public_text, is_of_devices=False)
        except AgentError:
            pass  # the attempts report it
        backoff = Backoff(first=FIRST_PAUSE_S, longest=MAX_PAUSE_S)
        while True:
            if why := self._refusal():
                return Failure("NodeLeaves", why, is_of_devices=False)
            problem = await self._try(claim, max(deadline.remaining(), self._least_s))
            if problem is None:
                return None
            log.info("claim not prepared ahead yet", extra={"claim": _uid(claim), "reason": str(problem)})
            if isinstance(problem, PermanentError):
                return Failure("SetUpFailed", problem.public_text, is_of_devices=True)
            seconds = backoff.delay(problem)
            if deadline.remaining() <= seconds:
                return Failure("TimedOut", problem.public_text, is_of_devices=True)
            await asyncio.sleep(seconds)
            if not await still_waiting():
                raise WithdrawnError

    async def _try(self, claim: dict[str, Any], timeout_s: float) -> AgentError | None:
        call = on_thread(self._preparer.prepare, claim, Deadline.of(CALL_TIMEOUT_S))
        # A call of a library that hangs cannot be ended. Its claim is released when it returns.
        done, _ = await asyncio.wait({call}, timeout=timeout_s)
        if not done:
            call.add_done_callback(_discard)
            return RetryableError(
                f"a set-up has not ended within {timeout_s:.0f} s", hint="`dra-agent doctor` names the call that hangs"
            )
        try:
            await call
        except AgentError as error:
            return error
        except Exception as error:  # the scheduler must get a result
            log.exception("claim not prepared ahead because of a defect", extra={"claim": _uid(claim)})
            return PermanentError(f"a defect: {error!r}", hint="report it with the log of the agent")
        return None


def _discard(call: asyncio.Future[Any]) -> None:
    """Log the end of a call that no longer has a caller."""
    if not call.cancelled():
        log.info("a late set-up has ended", extra={"reason": str(call.exception() or "it succeeded")})


def _uid(claim: dict[str, Any]) -> str:
    return str((claim.get("metadata") or {}).get("uid", ""))
