"""The process that runs the command of `dra-agent claim run`, and releases its claim if its parent cannot.

It is forked before the claim exists, starts the command when its parent asks for it, and adopts every process whose
parent ends, also daemons: the claim is held until none is left. If the parent exits without `done`, it ends them and
releases the claim. If the guard itself is killed, its parent adopts the processes. The claim has a token as an
annotation, so that a claim of the same name that was created by something else is never released.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dra_agent.errors import AgentError, RetryableError
from dra_agent.path_search import executable
from dra_agent.processes.tree import descendants, reap, send_signal, set_subreaper

if TYPE_CHECKING:
    from dra_agent.standalone.protocol import Client

STOP_TIMEOUT_S = 10.0
"""From SIGTERM to SIGKILL of a command whose `dra-agent claim run` was killed."""
GUARD_TIMEOUT_S = 3600.0
"""How long the guard retries a release: longer than an update of the agent, or than a repair of a full disk."""
REMAINING_NOTICE_S = 1.0
"""From the end of the command until the processes that it has left are reported."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_COMPLETE_TIMEOUT_S = 30.0
"""Seconds that a request waits for the end of the release."""
_RESPONSE_TIMEOUT_S = 10.0
"""Seconds in addition to that."""
_KILL_INTERVAL_S = 0.1
"""Between two rounds of SIGKILL: a process may start others meanwhile."""
_MAX_NAMED = 5


class _Channel:
    """Messages in JSON, one on each line, between the two processes."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, **message: Any) -> None:
        """Send a message; one to a process that has ended is lost."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return the next message; None at the end of the other process. Raises TimeoutError."""
        while b"\n" not in self._received:
            self._socket.settimeout(timeout_s)
            try:
                part = self._socket.recv(65536)
            except ConnectionResetError:
                part = b""
            if not part:
                return None
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def has_message(self) -> bool:
        return b"\n" in self._received

    def close(self) -> None:
        self._socket.close()


class ClaimGuard:
    """The guard process, as its parent uses it."""

    def __init__(self, agent: Client, namespace: str, name: str, token: str) -> None:
        """Start it; it does nothing to a claim without this token. It does not use the connection `agent`."""
        ours, theirs = socket.socketpair()
        self.is_started = False
        """Whether a command was started, which signals are forwarded to."""
        self._command = 0
        self._is_adopted = False
        self.pid = os.fork()
        if self.pid:
            theirs.close()
            self._channel = _Channel(ours)
            return
        ours.close()
        agent.close()  # or the agent would not notice that the other process has disconnected
        try:
            _Guard(_Channel(theirs)).serve(agent.path, namespace, name, token)
        finally:
            # Nothing of the forked interpreter may run: it would flush the output of the other process again.
            os._exit(0)

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the command, with these variables in addition to those of this process; raises OSError."""
        # For the end of the guard. A signal amid the message would be sent within it.
        set_subreaper()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            self.is_started = True
            self._channel.send(words=list(words), environment=dict(environment))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        reply = self._channel.receive()
        if reply is None:
            raise OSError(0, "the process that starts the command was killed")
        if "errno" in reply:
            raise OSError(reply["errno"], os.strerror(reply["errno"]))
        self._command = reply["pid"]

    def signal(self, number: int) -> None:
        """Forward a signal to the command, or to what it has left."""
        if self._is_adopted:
            send_signal(number, os.getpid())
        else:
            self._channel.send(signal=number)

    def wait(self) -> int:
        """Wait until the command and all processes that it has started have ended; returns its exit code."""
        code: int | None = None
        is_reported = False
        while True:
            try:
                message = self._channel.receive(REMAINING_NOTICE_S if code is not None and not is_reported else None)
            except TimeoutError:
                is_reported = True
                self._report_remaining(self.pid)
                continue
            if message is None:
                return self._adopt(code)
            if "code" in message:
                code = int(message["code"])
            if "empty" in message and code is not None:
                return code

    def _adopt(self, code: int | None) -> int:
        """Wait for what a killed guard has left to this process."""
        self._is_adopted = True
        self._report_remaining(os.getpid())
        ended, _ = reap(block=True)
        return ended.get(self._command, -signal.SIGKILL) if code is None else code

    def _report_remaining(self, root: int) -> None:
        if names := named(descendants(root)):
            print(f"dra-agent: the claim is held until these processes have ended: {names}", file=sys.stderr)

    def end(self, *, released: bool) -> None:
        """Have nothing left to do for it, or the release, which it retries."""
        if released:
            self._channel.send(done=True)
        self._channel.close()
        with contextlib.suppress(OSError):
            set_subreaper(on=False)


def named(pids: Iterable[int]) -> str:
    """Return the names of processes, of which there may be many; "" for none."""
    names = [f"{_name(pid)} ({pid})" for pid in sorted(pids)]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "a process"


class _Guard:
    """The process itself: parent of the command, and of every process below it that has lost its parent."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._command = 0
        self._code: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        self._changed, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(writer, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        set_subreaper()

    def serve(self, path: Path, namespace: str, name: str, token: str) -> None:
        """Run the command until nothing of it is left; then wait for `done`, or release the claim."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._changed, select.POLLIN)
        while True:
            if not self._channel.has_message():
                poll.poll()
            if self._reap():
                continue
            try:
                message = self._channel.receive(0.0)
            except (TimeoutError, BlockingIOError):
                continue
            if message is None:
                break
            if "done" in message:
                return
            if "words" in message:
                self._start(message["words"], message["environment"])
            elif "signal" in message:
                self._signal(message["signal"])
        _without_terminal()
        self._end()
        try:
            release(path, namespace, name, token, timeout_s=GUARD_TIMEOUT_S)
        except AgentError as error:
            print(f"dra-agent: claim {namespace}/{name} could not be released: {error}", file=sys.stderr, flush=True)

    def _start(self, words: list[str], environment: dict[str, str]) -> None:
        def in_the_child() -> None:
            for number in (*FORWARDED, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)

        try:
            # This process has one thread, so code between fork and exec cannot find a lock taken.
            started = subprocess.Popen(
                words,
                executable=executable(words[0]),
                env={**os.environ, **environment},
                preexec_fn=in_the_child,
            )
        except OSError as error:
            self._channel.send(errno=error.errno)
            return
        self._command = started.pid
        started.returncode = 0  # this object never waits for it: `_reap` does
        self._channel.send(pid=started.pid)
        _without_terminal()

    def _signal(self, number: int) -> None:
        if self._code is None and self._command:
            os.kill(self._command, number)  # its number is not another process's before `_reap` has waited for it
        elif self._command:
            send_signal(number, os.getpid())

    def _reap(self) -> bool:
        """Report the end of the command, and of all processes; returns whether a child has ended."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._changed, 4096)
        if not self._command:
            return False
        ended, remain = reap()
        if self._command in ended:
            self._code = ended[self._command]
            self._channel.send(code=self._code)
        if ended and not remain:
            self._channel.send(empty=True)
        return bool(ended)

    def _end(self) -> None:
        """End all processes, and return when they are gone."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        send_signal(signal.SIGTERM, os.getpid())
        while reap()[1]:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                send_signal(signal.SIGKILL, os.getpid())
            select.select([self._changed], [], [], remaining_s if remaining_s > 0 else _KILL_INTERVAL_S)
            with contextlib.suppress(BlockingIOError):
                os.read(self._changed, 4096)


def _without_terminal() -> None:
    """Leave the terminal and the files of the command: signals of the terminal are not for this process."""
    with contextlib.suppress(PermissionError):  # a second time
        os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


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
