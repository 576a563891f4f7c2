"""Queries to the kernel over rtnetlink, each in a separate process.

pyroute2 costs more memory than the rest of the agent, so a process lives as long as one query. If a driver hangs in the
kernel, not even SIGKILL ends the process: it is left behind and not waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from dra_agent.child import shared
from dra_agent.errors import RetryableError
from dra_agent.json_decode import decode_json

_T = TypeVar("_T")


def query_subprocess(
    module: str,
    response_type: type[_T],
    deadline: float,
    *,
    hint: str,
    stdin: bytes | None = None,
    files: Sequence[int] = (),
) -> _T:
    """Run the module, which prints its response as JSON, and return that; RetryableError if it does not.

    `stdin` is the content of its standard input, and `files` are descriptors that it inherits under their numbers.
    """
    try:
        done = shared(module, deadline).run([], stdin, files)
        if done.status == 0:
            return decode_json(done.output, type=response_type)
        operation = f"failed: {done.last_line}" if done.errors.strip() else f"failed: exit code {done.status}"
    except RetryableError as error:
        operation = error.message
    except msgspec.DecodeError as error:
        operation = f"failed: {error}"
    raise RetryableError(f"asking the kernel {operation}", where="rtnetlink", hint=hint)
