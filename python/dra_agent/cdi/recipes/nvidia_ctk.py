"""What `nvidia-ctk cdi generate` says of one GPU: asked once per driver version, with a deadline, and kept.

It runs the tool and takes its answer apart; it writes nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from dra_agent.cdi.model import ContainerEdits, Spec
from dra_agent.cdi.registry import decode
from dra_agent.errors import RetryableError

DEADLINE = 10.0
"""Seconds; a healthy tool needs one or two. The kubelet gives a whole prepare call 45."""
_BACK_OFF = 30.0
_TODO = "run it by hand to see what is wrong, or let nvidia-cdi-refresh keep /var/run/cdi/nvidia.yaml"
_Answer = tuple[ContainerEdits, ContainerEdits]
_Key = tuple[str, tuple[int, ...] | None]

log = logging.getLogger(__name__)


class NvidiaCtk:
    """The tool at one path, with what it said before; safe to use from several threads."""

    def __init__(self, tool: Path, deadline: float = DEADLINE) -> None:
        self._tool = tool
        self._deadline = deadline
        self._answers: dict[_Key, _Answer] = {}
        self._hung_at: float | None = None
        self._lock = threading.Lock()

    def edits(self, uuid: str, version: tuple[int, ...] | None) -> _Answer:
        """Give the edits of one GPU or MIG device, and those common to all; RetryableError where the tool fails.

        After it hung the tool is left alone for a while: that costs one deadline, and not one per GPU and call.
        """
        key = (uuid, version)
        known = self._answers.get(key)
        if known is not None and _present(known):
            return known
        with self._lock:
            if self._hung_at is not None and time.monotonic() - self._hung_at < _BACK_OFF:
                raise self._error(f"hung less than {_BACK_OFF:g} s ago and is left alone")
            self._hung_at = None
            answer = self._ask(uuid)
            self._answers[key] = answer
        return answer

    def _ask(self, uuid: str) -> _Answer:
        arguments = ["cdi", "generate", "--format=json", "--device-name-strategy=uuid"]
        status, output, errors = self._run([*arguments, f"--device-id={uuid}"])
        if status != 0 and "not defined" in errors:
            status, output, errors = self._run(arguments)  # before it could be asked for one device
        if status != 0:
            last = errors.strip().splitlines()[-1:] or ["no message"]
            raise self._error(f"exit status {status}: {last[0]}")
        try:
            spec = decode(output, json=True)
        except ValueError as error:
            raise self._error(f"its answer cannot be used: {error}") from error
        answer = _of_device(spec, uuid)
        if answer is None:
            raise self._error(f"it does not know {uuid}")
        return answer

    def _run(self, arguments: list[str]) -> tuple[int, bytes, str]:
        try:
            process = subprocess.Popen(
                [str(self._tool), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise self._error(f"cannot be run: {error.strerror}") from error
        try:
            output, errors = process.communicate(timeout=self._deadline)
        except subprocess.TimeoutExpired:
            self._abandon(process)
            self._hung_at = time.monotonic()
            raise self._error(f"did not answer within {self._deadline:g} s") from None
        return process.returncode, output, errors.decode(errors="replace")

    def _abandon(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a hung tool with its children; one that hangs within the driver stays, and must not be waited for."""
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)

    def _error(self, what: str) -> RetryableError:
        return RetryableError(what, where=str(self._tool), todo=_TODO)


def _of_device(spec: Spec, uuid: str) -> _Answer | None:
    for device in spec.devices:
        if device.name == uuid:
            return device.container_edits, spec.container_edits
    return None


def _present(answer: _Answer) -> bool:
    """Tell whether the files of the host that a kept answer names are all still there."""
    paths = (mount.host_path for edits in answer for mount in edits.mounts)
    return all(os.path.lexists(path) for path in paths)
