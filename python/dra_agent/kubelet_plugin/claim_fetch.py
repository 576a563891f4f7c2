"""Reads the claim that the kubelet requests, and verifies that it has the same uid and is allocated.

Nothing is prepared from an earlier read: between two calls a claim can be replaced by one of the same name, or
be given other devices.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from dra_agent.claim import ClaimRef
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.kubelet_plugin.interfaces import ClaimSource, Object
from dra_agent.retry import Backoff

FIRST_WAIT_S = 0.05
MAX_WAIT_S = 2.0
ONE_TRY_TIMEOUT_S = 10.0
"""Timeout of one request to the API server."""
# The Node authorizer permits a node to read a claim only after its graph has the pod; a fast kubelet calls
# earlier (kubernetes, plugin/pkg/auth/authorizer/node/node_authorizer.go).
_TOO_EARLY = "no relationship found"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


async def fetch(source: ClaimSource, claim: ClaimRef, deadline_s: float) -> Object:
    """Get an allocated claim from the API server; retries until `deadline_s`, in the loop's time, if that can help.

    Raises RetryableError if the server does not respond or the claim is not allocated; PermanentError if it was
    deleted, has been replaced, or may not be read.
    """
    for part in (claim.namespace, claim.name):
        if not _NAME.fullmatch(part):
            raise PermanentError(f"{part!r} is not a valid API name", where=str(claim))
    found = await _get(source, claim, deadline_s)
    metadata = found.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    if uid != claim.uid:
        raise PermanentError(
            f"was replaced: the API server has one of that name with uid {uid}, not {claim.uid}", where=str(claim)
        )
    if not _allocation(found):
        raise RetryableError("is not allocated", where=str(claim))
    return found


async def _get(source: ClaimSource, claim: ClaimRef, deadline_s: float) -> Object:
    loop = asyncio.get_running_loop()
    backoff = Backoff(first=FIRST_WAIT_S, longest=MAX_WAIT_S)
    while True:
        remaining_s = deadline_s - loop.time()
        try:
            return await source.claim(claim.namespace, claim.name, max(0.001, min(ONE_TRY_TIMEOUT_S, remaining_s)))
        except RetryableError as error:
            last: AgentError = error
        except TimeoutError:
            last = RetryableError("the API server does not respond")
        except PermanentError as error:
            if _TOO_EARLY not in str(error):
                raise
            last = error
        pause = backoff.delay(last)
        if loop.time() + pause >= deadline_s:
            raise RetryableError(f"cannot be read: {last}", where=str(claim)) from last
        await asyncio.sleep(pause)


def _allocation(claim: Object) -> Any:
    status = claim.get("status")
    return status.get("allocation") if isinstance(status, dict) else None
