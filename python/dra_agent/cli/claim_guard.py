"""A process that ends a command and releases its claim if `dra-agent claim run` is killed before it can do so.

It is forked before the claim exists and reads the number of the command from a pipe. The end of the pipe without `DONE`
means that the parent has exited, or could not release the claim. The command reports itself, and waits for the reply
before it is executed, so none runs that the guard would not end. The claim has a token as an annotation, so that a
claim of the same name that was created by something else is never released.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dra_agent.errors import AgentError, RetryableError

if TYPE_CHECKING:
    from dra_agent.standalone.protocol import Client

STOP_TIMEOUT_S = 10.0
"""From SIGTERM to SIGKILL of a command whose `dra-agent claim run` was killed."""
GUARD_TIMEOUT_S = 3600.0
"""How long the guard retries a release: longer than an update of the agent, or than a repair of a full disk."""
_COMPLETE_TIMEOUT_S = 30.0
"""Seconds that a request waits for the end of the release."""
_RESPONSE_TIMEOUT_S = 10.0
"""Seconds in addition to that."""
_REPLY_TIMEOUT_MS = 60_000
"""How long a command waits for the guard. It is executed without one after this time, or if the guard is gone."""
_DONE = b"done\n"


class ClaimGuard:
    """The guard process, as its parent uses it."""

    def __init__(self, agent: Client, namespace: str, name: str, token: str) -> None:
        """Start it; it does nothing to a claim without this token. It does not use the connection `agent`."""
        reader, self._writer = os.pipe()
        self._replies, replies = os.pipe()
        if os.fork():
            os.close(reader)
            os.close(replies)
            return
        os.close(self._writer)
        os.close(self._replies)
        agent.close()  # or the agent would not notice that the other process has disconnected
        try:
            _guard(reader, replies, agent.path, namespace, name, token)
        finally:
            # Nothing of the forked interpreter may run: it would flush the output of the other process again.
            os._exit(0)

    def watch_this_process(self) -> None:
        """In the process of the command, before it is executed: have it ended before its claim is released."""
        with contextlib.suppress(OSError):
            os.write(self._writer, f"{os.getpid()}\n".encode())
            poll = select.poll()
            poll.register(self._replies, select.POLLIN)
            poll.poll(_REPLY_TIMEOUT_MS)

    def end(self, *, released: bool) -> None:
        """Have nothing left to do for it, or the release, which it retries."""
        with contextlib.suppress(OSError):
            if released:
                os.write(self._writer, _DONE)
        os.close(self._writer)
        os.close(self._replies)


def release(path: Path, namespace: str, name: str, token: str, *, timeout_s: float) -> bool:
    """Release the claim of a run; return True once it is deleted. A claim without the token is not changed.

    An `apply` of the run that is still under way will store nothing. It uses a separate connection, because that
    request may be waiting for its response on the other one. The agent may be restarting: retries end after
    `timeout_s`.

    Returns False if the claim is still being released. Raises RetryableError if the agent did not respond in that time.
    """
    from time import monotonic, sleep

    from dra_agent.retry import Backoff
    from dra_agent.standalone.protocol import Client, ReleaseRun

    deadline, backoff = monotonic() + timeout_s, Backoff(first=0.5, longest=5.0)
    while True:
        wait = max(0.0, min(deadline - monotonic(), _COMPLETE_TIMEOUT_S))
        try:
            with Client(path) as agent:
                request = ReleaseRun(namespace, name, token, wait)
                return bool(agent.call(request, timeout_s=wait + _RESPONSE_TIMEOUT_S))
        except RetryableError as error:
            pause = backoff.delay(error)
            if monotonic() + pause >= deadline:
                raise
        sleep(pause)


def _guard(reader: int, replies: int, path: Path, namespace: str, name: str, token: str) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    handle: int | None = None
    received = b""
    while part := os.read(reader, 64):
        received += part
        if _DONE in received:
            return
        if handle is None and b"\n" in received:
            # The command waits for the reply, so its number cannot be another process's yet.
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(int(received.partition(b"\n")[0]))
                os.write(replies, b"\n")
    if handle is not None:
        _end(handle)
    try:
        release(path, namespace, name, token, timeout_s=GUARD_TIMEOUT_S)
    except AgentError as error:
        print(f"dra-agent: claim {namespace}/{name} could not be released: {error}", file=sys.stderr, flush=True)


def _end(handle: int) -> None:
    """End a process, and return when it is gone."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if not poll.poll(STOP_TIMEOUT_S * 1000):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            poll.poll()
