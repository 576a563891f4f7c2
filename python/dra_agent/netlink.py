"""Questions to the kernel over rtnetlink, each asked by a process of its own.

pyroute2 costs more memory than the rest of the agent, so it lives as long as one question; and where a driver hangs in
the kernel, not even SIGKILL ends the process that asked, which is then left behind and not waited for.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from dra_agent.errors import RetryableError
from dra_agent.program import Program

_T = TypeVar("_T")


def ask(
    module: str, answer: type[_T], deadline: float, *, todo: str, given: bytes | None = None, files: Sequence[int] = ()
) -> _T:
    """Run `python -m module`, which prints its answer as JSON, and give that; RetryableError where it does not.

    `given` is what it reads from its standard input, and `files` are descriptors that it inherits under their numbers.
    """
    try:
        done = _program(sys.executable, module, deadline).run(["-m", module], given, files)
        if done.status == 0:
            return msgspec.json.decode(done.output, type=answer)
        what = f"failed: {done.last_words}" if done.errors.strip() else f"failed: exit code {done.status}"
    except RetryableError as error:
        what = error.what
    except msgspec.MsgspecError as error:
        what = f"failed: {error}"
    raise RetryableError(f"asking the kernel {what}", where="rtnetlink", todo=todo)


@functools.cache
def _program(executable: str, module: str, deadline: float) -> Program:
    """One for all questions of a kind: what hung is left alone for a while, so that few processes are left behind."""
    del module
    return Program(Path(executable), deadline)
