"""The state file of device health, for a restarted agent and for commands.

A file that is lost or damaged loses times and past events, never a device. Nothing of it survives a reboot.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent.clock import STEADY, STEP, SteadyClock
from dra_agent.health.hysteresis import ActiveIssue
from dra_agent.json_decode import decode_json

log = logging.getLogger(__name__)

_NAME = "health.json"
_MAX_BYTES = 16 << 20


class _Contents(msgspec.Struct):
    boot_id: str
    active_issues: list[ActiveIssue] = msgspec.field(default_factory=list, name="spells")
    booted: float | None = None
    """The boot time of the host, by the writer's clock: Unix time."""


class HealthStateFile:
    """The file of one state directory."""

    def __init__(self, state_dir: Path, boot_id: str, clock: SteadyClock = STEADY) -> None:
        self._booted = clock.booted.timestamp()
        self._path = state_dir / _NAME
        self._boot_id = boot_id
        self._failed = False

    def read(self) -> list[ActiveIssue]:
        """Return the active issues at the time of writing; empty if unknown."""
        try:
            contents = decode_json(atomic_file.read(self._path, _MAX_BYTES), type=_Contents)
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the saved issues of devices cannot be read", extra={"reason": str(error)})
            return []
        if contents.boot_id != self._boot_id:
            return []
        # The clocks of two processes differ by the steps of the wall clock between their starts.
        by = 0.0 if contents.booted is None else self._booted - contents.booted
        if abs(by) >= STEP.total_seconds():
            for active in contents.active_issues:
                active.last += by
                active.began = None if active.began is None else active.began + by
        return contents.active_issues

    def write(self, active_issues: list[ActiveIssue]) -> None:
        """Replace it; a write error is logged once."""
        try:
            atomic_file.write(
                self._path, msgspec.json.encode(_Contents(self._boot_id, active_issues, self._booted)), mode=0o644
            )
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.warning("the issues of devices cannot be saved", extra={"reason": str(error)})
            self._failed = True
