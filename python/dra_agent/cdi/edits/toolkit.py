"""What `nvidia-ctk cdi generate` says of one GPU: asked once per driver version, with a deadline, and kept.

It runs the tool and takes its answer apart; it writes nothing.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from dra_agent.cdi.model import ContainerEdits, Spec
from dra_agent.cdi.registry import decode
from dra_agent.command import HostCommand

TIMEOUT_S = 10.0
"""Seconds; a healthy tool needs one or two. The kubelet gives a whole prepare call 45."""
_TODO = "run it by hand to see what is wrong, or let nvidia-cdi-refresh keep /var/run/cdi/nvidia.yaml"
_Answer = tuple[ContainerEdits, ContainerEdits]
_Key = tuple[str, tuple[int, ...] | None]


class ToolkitCommand:
    """The tool at one path, with what it said before; safe to use from several threads."""

    def __init__(self, tool: Path, deadline: float = TIMEOUT_S) -> None:
        self._tool = HostCommand(tool, deadline, hint=_TODO)
        self._answers: dict[_Key, _Answer] = {}
        self._lock = threading.Lock()

    def edits(self, uuid: str, version: tuple[int, ...] | None) -> _Answer:
        """Give the edits of one GPU or MIG device, and those common to all; RetryableError where the tool fails."""
        key = (uuid, version)
        known = self._answers.get(key)
        if known is not None and _present(known):
            return known
        with self._lock:
            answer = self._ask(uuid)
            self._answers[key] = answer
        return answer

    def _ask(self, uuid: str) -> _Answer:
        arguments = ["cdi", "generate", "--format=json", "--device-name-strategy=uuid"]
        answer = self._tool.run([*arguments, f"--device-id={uuid}"])
        if answer.status != 0 and "not defined" in answer.errors:
            answer = self._tool.run(arguments)  # before it could be asked for one device
        if answer.status != 0:
            last = answer.errors.strip().splitlines()[-1:] or ["no message"]
            raise self._tool.error(f"exit status {answer.status}: {last[0]}")
        try:
            spec = decode(answer.output, json=True)
        except ValueError as error:
            raise self._tool.error(f"its answer cannot be used: {error}") from error
        found = _of_device(spec, uuid)
        if found is None:
            raise self._tool.error(f"it does not know {uuid}")
        return found


def _of_device(spec: Spec, uuid: str) -> _Answer | None:
    for device in spec.devices:
        if device.name == uuid:
            return device.container_edits, spec.container_edits
    return None


def _present(answer: _Answer) -> bool:
    """Tell whether the files of the host that a kept answer names are all still there."""
    paths = (mount.host_path for edits in answer for mount in edits.mounts)
    return all(os.path.lexists(path) for path in paths)
