"""Reads the claim that the kubelet requests, and verifies that it has the same uid and is allocated.

Nothing is prepared from an earlier read: between two calls a claim can be replaced by one of the same name, or
be given other devices.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

from dra_agent.api_object import Object
from dra_agent.claim import ClaimRef
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.kubelet_plugin.interfaces import ClaimSource
from dra_agent.retry import Backoff

FIRST_WAIT_S = 0.05
MAX_WAIT_S = 2.0
ONE_TRY_TIMEOUT_S = 10.0
"""Timeout of one request to the API server."""
# The Node authorizer permits a node to read a claim only after its graph has the pod; a fast kubelet calls
# earlier (kubernetes, plugin/pkg/auth/authorizer/node/node_authorizer.go).
_TOO_EARLY = "no relationship found"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class UnreadError(Exception):
    """The claim was not read on the thread, and has to be read on the event loop; `tried` is why the attempt failed."""

    def __init__(self, tried: AgentError | None = None) -> None:
        super().__init__()
        self.tried = tried


def fetch_on_thread(source: ClaimSource, claim: ClaimRef, deadline_s: float) -> Object:
    """Get an allocated claim on the calling thread, with one attempt until `deadline_s`, in the time of time.monotonic.

    Raises the errors of `fetch`, and UnreadError where `fetch` has to be used.
    """
    _check_names(claim)
    try:
        found = source.claim_on_thread(claim.namespace, claim.name, _timeout(deadline_s - time.monotonic()))
    except (RetryableError, PermanentError) as error:
        if not _may_help(error):
            raise
        raise UnreadError(error) from error
    if found is None:
        raise UnreadError
    return _checked(found, claim)


async def fetch(source: ClaimSource, claim: ClaimRef, deadline_s: float, *, tried: AgentError | None = None) -> Object:
    """Get an allocated claim from the API server; retries until `deadline_s`, in the loop's time, if that can help.

    `tried`: the error of a first attempt.

    Raises RetryableError if the server does not respond or the claim is not allocated; PermanentError if it was
    deleted, has been replaced, or may not be read.
    """
    _check_names(claim)
    return _checked(await _get(source, claim, deadline_s, tried), claim)


def _check_names(claim: ClaimRef) -> None:
    for part in (claim.namespace, claim.name):
        if not _NAME.fullmatch(part):
            raise PermanentError(f"{part!r} is not a valid API name", where=str(claim))


def _checked(found: Object, claim: ClaimRef) -> Object:
    metadata = found.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    if uid != claim.uid:
        raise PermanentError(
            f"was replaced: the API server has one of that name with uid {uid}, not {claim.uid}", where=str(claim)
        )
    if not _allocation(found):
        raise RetryableError("is not allocated", where=str(claim))
    return found


async def _get(source: ClaimSource, claim: ClaimRef, deadline_s: float, tried: AgentError | None) -> Object:
    loop = asyncio.get_running_loop()
    backoff = Backoff(first=FIRST_WAIT_S, longest=MAX_WAIT_S)
    while True:
        if tried is None:
            try:
                return await source.claim(claim.namespace, claim.name, _timeout(deadline_s - loop.time()))
            except (RetryableError, PermanentError) as error:
                if not _may_help(error):
                    raise
                tried = error
            except TimeoutError:
                tried = RetryableError("the API server does not respond")
        pause = backoff.delay(tried)
        if loop.time() + pause >= deadline_s:
            raise RetryableError(f"cannot be read: {tried}", where=str(claim)) from tried
        tried = None
        await asyncio.sleep(pause)


def _timeout(remaining_s: float) -> float:
    return max(0.001, min(ONE_TRY_TIMEOUT_S, remaining_s))


def _may_help(error: AgentError) -> bool:
    """Return whether another attempt may succeed."""
    return isinstance(error, RetryableError) or _TOO_EARLY in str(error)


def _allocation(claim: Object) -> Any:
    status = claim.get("status")
    return status.get("allocation") if isinstance(status, dict) else None
