"""`dra-agent` commands that the preloaded process forks, with the methods of `subprocess.Popen` that tests use."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from eventually import DEADLINE_S
from leftovers import record_process
from preloaded import client, server
from preloaded.children import Requests, forks_children, read_status

READ_BY_INTERPRETER = ("PYTHON", "LC_", "LANG", "MALLOC_", "LD_")
"""Beginnings of variables that have an effect only while an interpreter starts."""


class _Server:
    """The preloaded process of this process; the first request starts it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Requests | None = None
        self._pid = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Return the pid of the child."""
        with self._lock:
            requests = self._requests or self._start()
        return requests.fork(request, descriptors)

    def program_folder(self) -> Path:
        """Return a directory with a program `dra-agent`."""
        with self._lock:
            if self._requests is None:
                self._start()
            assert self._folder is not None
            return Path(self._folder.name) / "bin"

    def _start(self) -> Requests:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests = Requests(ours)
        self._folder = tempfile.TemporaryDirectory(prefix="dra-forks-")
        path, program = Path(self._folder.name) / "socket", Path(self._folder.name) / "bin/dra-agent"
        program.parent.mkdir()
        run_client = shlex.join([sys.executable, "-I", "-S", client.__file__, str(path)])
        program.write_text(f'#!/bin/sh\nexec {run_client} "$@"\n')
        program.chmod(0o755)
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(os.fspath(path))
            listening.listen(socket.SOMAXCONN)
            theirs.set_inheritable(True)
            listening.set_inheritable(True)
            command = [sys.executable, server.__file__, str(theirs.fileno()), str(listening.fileno())]
            environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
            # Not a Popen: it outlives the test that needs it first.
            self._pid = os.posix_spawn(sys.executable, command, environment)
        return self._requests

    def close(self) -> None:
        with self._lock:
            if self._requests is not None:
                self._requests.close()
                self._requests = None
                os.waitpid(self._pid, 0)
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None


_server = _Server()
fork = _server.fork
"""Fork a child of the preloaded process."""
program_folder = _server.program_folder
"""A directory for PATH with `dra-agent` as a program that runs a fork: for commands in scripts."""
close = _server.close
"""End the preloaded process, if there is one; commands continue."""


class Command:
    """A child of the preloaded process, which reaps it and sends its status through a pipe."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdout: int | IO[Any] = 1,
        stderr: int | IO[Any] = 2,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        patch: str = "",
    ) -> None:
        """Start `dra-agent ARGUMENTS`; `patch` has Python statements that run first."""
        variables = dict(os.environ if env is None else env)
        for name in variables.keys() | os.environ.keys():
            if name.startswith(READ_BY_INTERPRETER) and variables.get(name) != os.environ.get(name):
                raise ValueError(f"{name}: only a new interpreter reads it; start this command with subprocess")
        self.args = ["dra-agent", *arguments]
        self.returncode: int | None = None
        self._lock = threading.Lock()
        request = {
            "module": None,
            "arguments": arguments,
            "patch": patch,
            "environment": variables,
            "directory": os.fspath(cwd or Path.cwd()),
            "session": False,
            "fork_children": forks_children(),
            "files": [0, 1, 2],
        }
        self._status, theirs = os.pipe()
        try:
            files = [stream if isinstance(stream, int) else stream.fileno() for stream in (0, stdout, stderr)]
            self.pid = _server.fork(request, [*files, theirs])
        except BaseException:
            os.close(self._status)
            raise
        finally:
            os.close(theirs)
        record_process(self)

    def poll(self) -> int | None:
        """Return the exit code if it has ended."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; subprocess.TimeoutExpired after `timeout` seconds."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and its exit code is on the way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout_s: float | None) -> int | None:
        with self._lock:
            if self.returncode is None:
                self.returncode = read_status(self._status, timeout_s)
            return self.returncode


def run(
    arguments: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, patch: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `dra-agent ARGUMENTS` to its end, `patch` first; returns its exit code and output."""
    with os.fdopen(os.memfd_create("stdout"), "r+") as stdout, os.fdopen(os.memfd_create("stderr"), "r+") as stderr:
        command = Command(arguments, stdout=stdout, stderr=stderr, env=env, cwd=cwd, patch=patch)
        try:
            code = command.wait(DEADLINE_S * 2)
        except BaseException:
            command.kill()
            command.wait()
            raise
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(command.args, code, stdout.read(), stderr.read())
