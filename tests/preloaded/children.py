"""Child processes of the agent as forks of the preloaded process, in agents that are forks themselves and in tests.

The agent starts modules of its package with a new interpreter each (`dra_agent.child`). Here a child has the same
arguments, environment, directory, files and session, and starts in a tenth of the time. It is not a child of its
caller for the kernel, and has another command line: tests of these start real ones with `start_interpreters`.
"""

from __future__ import annotations

import errno
import json
import os
import select
import shlex
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dra_agent import child
from dra_simulate.nvidia_smi import TOOL
from preloaded.server import FORKED_MODULES

Fork = Callable[[Mapping[str, Any], Sequence[int]], int]
"""Sends a request with descriptors to the preloaded process; returns the pid. OSError if it has ended."""

READ_BY_LOADER = ("LC_", "LANG", "MALLOC_", "LD_")
"""Beginnings of variables that have an effect only while a program starts."""
NAMESPACES = ("net", "mnt", "pid", "user")

_interpreter = len(child.command("")) - 1
_fork: Fork | None = None
_host: tuple[object, ...] = ()


class ForkedProcess(subprocess.Popen[Any]):
    """A process that is forked if it runs one of `FORKED_MODULES` in the environment of this process.

    Also if a script of a simulated host does, in the environment that it sets.
    """

    _status = -1
    """The end of a pipe that receives the exit status of a fork."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._status_lock = threading.Lock()
        super().__init__(*args, **kwargs)

    def _execute_child(self, *arguments: Any) -> None:
        """Start the process; called by `subprocess.Popen` once its pipes exist (the same in Python 3.11 to 3.14)."""
        args, _, preexec, _, pass_fds, cwd, env = arguments[:7]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = arguments[10:16]
        session = arguments[21]
        if preexec is None and (program := _forked_program(args, env)) is not None:
            streams = [own if own != -1 else number for number, own in enumerate((p2cread, c2pwrite, errwrite))]
            directory = os.fspath(cwd) if cwd is not None else os.getcwd()  # noqa: PTH109
            request = {"directory": directory, **program, "session": session, "files": [0, 1, 2, *pass_fds]}
            if self._forked(request, [*streams, *pass_fds]):
                self._child_created = True
                self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]
                return
        super()._execute_child(*arguments)  # type: ignore[misc]

    def _forked(self, request: Mapping[str, Any], files: Sequence[int]) -> bool:
        assert _fork is not None
        status, theirs = os.pipe()
        try:
            self.pid = _fork(request, [*files, theirs])
        except OSError:  # the preloaded process has ended, as the tests have
            os.close(status)
            return False
        finally:
            os.close(theirs)
        self._status = status
        return True

    def poll(self) -> int | None:
        """Return the exit code if it has ended."""
        return super().poll() if self._status == -1 and self.returncode is None else self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; subprocess.TimeoutExpired after `timeout` seconds."""
        if self._status == -1 and self.returncode is None:
            return super().wait(timeout)
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _ended(self, timeout_s: float | None) -> int | None:
        with self._status_lock:
            if self.returncode is None:
                self.returncode = read_status(self._status, timeout_s)
                if self.returncode is not None:
                    self._status = -1
            return self.returncode

    def __del__(self, *args: Any, **kwargs: Any) -> None:
        if self._status != -1:
            os.close(self._status)
        super().__del__(*args, **kwargs)


def read_status(status: int, timeout_s: float | None) -> int | None:
    """Return the exit code that the preloaded process writes to a pipe, and close it; None after `timeout_s`.

    The pipe stays open if the preloaded process has ended, so that each call reports this.
    """
    poll = select.poll()
    poll.register(status, select.POLLIN)
    if not poll.poll(None if timeout_s is None else timeout_s * 1000):
        return None
    text = os.read(status, 32)
    assert text, "the preloaded process has ended before its child"
    os.close(status)
    return os.waitstatus_to_exitcode(int(text))


class Requests:
    """The connection of a process to the preloaded one; thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def fork(self, request: Mapping[str, Any], files: Sequence[int]) -> int:
        """Send a request and return the pid."""
        with self._lock:
            socket.send_fds(self._connection, [json.dumps(request).encode()], files)
            reply = self._connection.recv(32)
        if not reply:
            raise OSError(errno.ECONNRESET, "the preloaded process has ended; the reason is on its standard error")
        return int(reply)

    def close(self) -> None:
        self._connection.close()


def fork_children(fork: Fork) -> None:
    """Fork child processes of this process from now on."""
    global _fork, _host
    _fork, _host = fork, _this_host()
    subprocess.Popen = ForkedProcess  # type: ignore[misc]


def forks_children() -> bool:
    """Return whether child processes of this process are forked."""
    return _fork is not None


@contextmanager
def start_interpreters() -> Iterator[None]:
    """Start child processes of this process, and of agents that it starts, as the agent does, in this context."""
    global _fork
    before, _fork = _fork, None
    try:
        yield
    finally:
        _fork = before


def _forked_program(args: Any, env: Mapping[str, str] | None) -> dict[str, Any] | None:
    """Return the part of a request that describes the program; None for one that is not forked."""
    if _fork is None or not isinstance(args, list) or _this_host() != _host:
        return None
    if len(args) <= _interpreter:
        return _tool_of_simulated_host(args)
    module, arguments = args[_interpreter], args[_interpreter + 1 :]
    if (
        module in FORKED_MODULES
        and args[: _interpreter + 1] == child.command(module)
        and (env is None or _start_variables(env) == _start_variables(os.environ))
    ):
        return {
            "module": module,
            "arguments": arguments,
            "environment": dict(os.environ if env is None else env),
        }
    return _tool_of_simulated_host(args)


def _tool_of_simulated_host(args: list[Any]) -> dict[str, Any] | None:
    """Return the program that a script of `child.script` becomes, with the directory and environment that it sets."""
    tool, *arguments = args
    if os.path.basename(tool) != TOOL.name:  # noqa: PTH119
        return None
    try:
        words = shlex.split(Path(tool).read_text(), comments=True)
    except (OSError, ValueError):  # another program of that name
        return None
    if words[:2] != ["cd", child.WORKING_DIRECTORY] or words[2:6] != ["&&", "exec", "env", "-i"]:
        return None
    variable, command = words[6], words[7:]
    module = command[_interpreter]
    if module not in FORKED_MODULES or command[: _interpreter + 1] != child.command(module) or command[-1] != "$@":
        return None
    name, _, value = variable.partition("=")
    return {
        "module": module,
        "arguments": [*command[_interpreter + 1 : -1], *arguments],
        "environment": {name: value},
        "directory": child.WORKING_DIRECTORY,
    }


def _start_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_BY_LOADER)}


def _this_host() -> tuple[object, ...]:
    """Return what a child inherits from the thread that starts it."""
    return os.geteuid(), os.getegid(), *(Path(f"/proc/thread-self/ns/{name}").readlink() for name in NAMESPACES)
