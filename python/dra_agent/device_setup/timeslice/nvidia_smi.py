"""Time slices through nvidia-smi, because NVML has no call for them. Exit statuses are those of nvidia-smi(1)."""

from __future__ import annotations

import re
from pathlib import Path

from dra_agent.command import CompletedCommand, HostCommand
from dra_agent.errors import PermanentError

DEADLINE = 10.0
"""Maximum seconds for one call; a healthy tool needs less than one. The kubelet has 45 for a whole prepare call."""
_NOT_SUPPORTED = 3
_GONE = frozenset({6, 9, 12, 15})
"""No such GPU, driver not loaded, no NVML library, GPU lost: the settings of the GPU are lost with it."""
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,95}")
_TODO = "run it manually to find the cause; changing a GPU requires root"


class GoneError(Exception):
    """The GPU or the driver does not exist: nothing is set on it."""


class NvidiaSmi:
    """The tool, for one GPU: a hanging call does not block calls for other GPUs; thread-safe."""

    def __init__(self, path: Path, uuid: str, deadline: float = DEADLINE) -> None:
        """PermanentError for an invalid UUID."""
        if not _UUID.fullmatch(uuid):
            raise PermanentError(
                "is not the UUID of a GPU", where=repr(uuid[:80])
            )  # the tool could parse it as an option
        self._uuid = uuid
        self._program = HostCommand(path, deadline, hint=_TODO)

    def set_time_slice(self, number: int) -> None:
        """Set the length of time slices, 0 for the driver's default; GoneError, PermanentError if the GPU has none."""
        self._ask(["compute-policy", "-i", self._uuid, "--set-timeslice", str(number)])

    def compute_mode(self) -> str:
        """Return the compute mode of the GPU: "DEFAULT", "EXCLUSIVE_PROCESS" or "PROHIBITED"."""
        answer = self._ask(["-i", self._uuid, "--query-gpu=compute_mode", "--format=csv,noheader"])
        mode = answer.output.decode(errors="replace").strip().upper()
        if not mode.isascii() or not mode.replace("_", "").isalpha():
            raise self._program.error(f"unexpected output: {mode[:80]!r} is not a compute mode")
        return mode

    def set_compute_mode(self, mode: str) -> None:
        """Set the compute mode of the GPU."""
        self._ask(["-i", self._uuid, "-c", mode])

    def _ask(self, arguments: list[str]) -> CompletedCommand:
        answer = self._program.run(arguments)
        if answer.status in _GONE:
            raise GoneError(f"nvidia-smi: {answer.last_line} (exit status {answer.status})")
        if answer.status == _NOT_SUPPORTED:
            raise PermanentError(
                f"timeSlicing.interval: {self._uuid} does not support it: {answer.last_line}",
                where=str(self._program.path),
                hint="remove the configuration, or choose other GPUs",
            )
        if answer.status != 0:
            raise self._program.error(f"exit status {answer.status}: {answer.last_line}")
        return answer
