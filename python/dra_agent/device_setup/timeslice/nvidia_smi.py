"""Time slices through nvidia-smi, because NVML has no call for them. Exit statuses are those of nvidia-smi(1)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from dra_agent.command import CompletedCommand, HostCommand
from dra_agent.errors import PermanentError

CALL_TIMEOUT_S = 10.0
"""Maximum seconds for one call; a healthy tool needs less than one. The kubelet has 45 for a whole prepare call."""
_NOT_SUPPORTED = 3
_GPU_MISSING = frozenset({6, 9, 12, 15})
"""No such GPU, driver not loaded, no NVML library, GPU lost: the settings of the GPU are lost with it."""
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,95}")
_HINT = "run it manually to find the cause; changing a GPU requires root"


class GoneError(Exception):
    """The GPU or the driver does not exist: nothing is set on it."""


class NvidiaSmi:
    """The tool, for one GPU: a hanging call does not block calls for other GPUs; thread-safe."""

    def __init__(
        self,
        path: Path,
        uuid: str,
        deadline: float = CALL_TIMEOUT_S,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """PermanentError for an invalid UUID. `environment` is added to the agent's own."""
        if not _UUID.fullmatch(uuid):
            raise PermanentError(
                "is not the UUID of a GPU", where=repr(uuid[:80])
            )  # the tool could parse it as an option
        self._uuid = uuid
        self._command = HostCommand(path, deadline, hint=_HINT, environment=environment)

    def set_time_slice(self, number: int) -> None:
        """Set the length of time slices, 0 for the driver's default; GoneError, PermanentError if the GPU has none."""
        self._run(["compute-policy", "-i", self._uuid, "--set-timeslice", str(number)])

    def compute_mode(self) -> str:
        """Return the compute mode of the GPU: "DEFAULT", "EXCLUSIVE_PROCESS" or "PROHIBITED"."""
        completed = self._run(["-i", self._uuid, "--query-gpu=compute_mode", "--format=csv,noheader"])
        mode = completed.output.decode(errors="replace").strip().upper()
        if not mode.isascii() or not mode.replace("_", "").isalpha():
            raise self._command.error(f"unexpected output: {mode[:80]!r} is not a compute mode")
        return mode

    def set_compute_mode(self, mode: str) -> None:
        """Set the compute mode of the GPU."""
        self._run(["-i", self._uuid, "-c", mode])

    def _run(self, arguments: list[str]) -> CompletedCommand:
        completed = self._command.run(arguments)
        if completed.status in _GPU_MISSING:
            raise GoneError(f"nvidia-smi: {completed.last_line} (exit status {completed.status})")
        if completed.status == _NOT_SUPPORTED:
            raise PermanentError(
                f"timeSlicing.interval: {self._uuid} does not support it: {completed.last_line}",
                where=str(self._command.path),
                hint="remove the configuration, or choose other GPUs",
            )
        if completed.status != 0:
            raise self._command.error(f"exit status {completed.status}: {completed.last_line}")
        return completed
