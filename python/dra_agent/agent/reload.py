"""Reloads the configuration: read and checked as a whole, then all reloadable keys are applied together, or none.

The disk that the file is on may hang, and the event loop must not: a thread reads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from dra_agent.agent import logs
from dra_agent.agent.config import Config, checksum
from dra_agent.agent.config_keys import changed_keys, is_reloadable
from dra_agent.agent.config_problems import ConfigError
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.errors import AgentError

log = logging.getLogger(__name__)

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
LEVELS = ("debug", "info", "warning", "error")


class ReloadStatus(msgspec.Struct, frozen=True):
    """The outcome of the last reload, or of the start."""

    successful: bool
    loaded_at: float
    """When the last valid configuration was loaded, in seconds since the epoch."""
    checksum: int
    """Of the last valid configuration."""
    problems: tuple[str, ...] = ()
    """Why the last reload was refused."""
    restart: tuple[str, ...] = ()
    """Keys that were changed since the start and apply at the next one."""


class Reload:
    """Reloads from the first call to the end of the process. One reload runs at a time."""

    def __init__(self, config: Config, read: Callable[[], Config]) -> None:
        """`config`: the current configuration. `read`: reads flags, variables and file again, may raise AgentError."""
        self.effective = config
        """The configuration in effect."""
        self.status = ReloadStatus(True, time.time(), checksum(config))  # noqa: TID251 - a moment that is exported as a metric
        self._loaded = config
        self._read = read
        self._apply: Callable[[Config], None] = lambda config: None
        self._ended: Callable[[], None] = lambda: None
        self._pending = 0
        self._is_requested = False
        self._lock = threading.Lock()
        self._thread = DaemonExecutor(1, "reload", kept=1)

    def follow(self, apply: Callable[[Config], None], ended: Callable[[], None] = lambda: None) -> None:
        """Have `apply` called on the thread with a changed configuration; if it raises AgentError, nothing changed.

        `ended` is called on the thread after each reload.
        """
        self._apply = apply
        self._ended = ended

    def __call__(self) -> None:
        """Start a reload, or let a running one read again; returns immediately."""
        self._start(is_requested=True)

    def file_changed(self) -> None:
        """Reload if the configuration has changed; problems are reported once."""
        self._start(is_requested=False)

    def _start(self, *, is_requested: bool) -> None:
        with self._lock:
            self._is_requested = self._is_requested or is_requested
            self._pending = min(self._pending + 1, 2)
            if self._pending > 1:
                return
        self._thread.submit(self._follow)

    def _follow(self) -> None:
        more = True
        while more:
            with self._lock:
                is_requested, self._is_requested = self._is_requested, False
            try:
                self._reload(is_requested=is_requested)
                self._ended()
            except BaseException:  # a defect here must not end the reloads of a running agent
                log.exception("the result of a reload is not reported")
            finally:
                with self._lock:
                    self._pending -= 1
                    more = self._pending > 0

    def _reload(self, *, is_requested: bool) -> None:
        try:
            self._load(is_requested=is_requested)
        except AgentError as error:
            found = error.problems if isinstance(error, ConfigError) else (error,)
            problems = tuple(map(str, found))
            if is_requested or problems != self.status.problems:
                for problem in problems:
                    log.error("configuration not reloaded, the current one stays", extra={"reason": problem})
            self.status = msgspec.structs.replace(self.status, successful=False, problems=problems)
        except Exception as error:  # a defect here must not end the reloads of a running agent
            log.exception("configuration not reloaded, the current one stays")
            problem = f"internal error: {type(error).__name__}: {error}"
            self.status = msgspec.structs.replace(self.status, successful=False, problems=(problem,))

    def _load(self, *, is_requested: bool) -> None:
        config = self._read()
        if not is_requested and config == self._loaded and self.status.successful:
            return
        effective = merged(self.effective, config)
        if effective != self.effective:
            self._apply(effective)
        logs.set_up(effective.log_level, effective.log_format)
        before, self.effective, self._loaded = self.effective, effective, config
        restart = tuple(key for key in changed_keys(effective, config) if not is_reloadable(key))
        self.status = ReloadStatus(True, time.time(), checksum(config), (), restart)  # noqa: TID251 - a moment that is exported as a metric
        # The line about a new level is part of the log if either level shows it.
        logs.write(
            log,
            logging.INFO,
            "configuration reloaded",
            {"applied": changed_keys(before, effective)},
            level=min(before.log_level, effective.log_level, key=LEVELS.index),
        )
        if restart:
            log.warning("settings changed that need a restart of the agent", extra={"settings": restart})


def merged(running: Config, loaded: Config) -> Config:
    """Return the running configuration with the reloadable keys of the loaded one."""
    return _merged(running, loaded, "")


def _merged(running: _Struct, loaded: _Struct, above: str) -> _Struct:
    changes: dict[str, Any] = {}
    for field in msgspec.structs.fields(running):
        value, key = getattr(running, field.name), above + field.name
        if isinstance(value, msgspec.Struct):
            changes[field.name] = _merged(value, getattr(loaded, field.name), f"{key}.")
        elif is_reloadable(key):
            changes[field.name] = getattr(loaded, field.name)
    return msgspec.structs.replace(running, **changes)
