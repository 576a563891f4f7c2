"""SIGHUP: the configuration is read again, and what can change while the agent runs is changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from dra_agent.agent import logs
from dra_agent.agent.config import Config
from dra_agent.errors import AgentError

log = logging.getLogger(__name__)

LEVELS = ("debug", "info", "warning", "error")
RELOADABLE = frozenset({"log_level", "log_format"})
"""Settings that apply without a restart."""


class Reload:
    """Reloads the configuration on a thread: the disk that the file is on may hang, and the event loop must not."""

    def __init__(self, config: Config, read: Callable[[], Config]) -> None:
        """`config`: what the agent runs with. `read`: reads flags, variables and file again, may raise AgentError."""
        self._running = self._config = config
        self._read = read
        self._wanted = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Start a reload, or have the one that runs read once more."""
        with self._lock:
            self._wanted = min(self._wanted + 1, 2)
            if self._wanted > 1:
                return
        threading.Thread(target=self._follow, name="reload", daemon=True).start()

    def _follow(self) -> None:
        more = True
        while more:
            self._reload()
            with self._lock:
                self._wanted -= 1
                more = self._wanted > 0

    def _reload(self) -> None:
        try:
            config = self._read()
        except AgentError as error:
            log.error("configuration not reloaded, the present one stays", extra={"reason": str(error)})
            return
        except Exception:  # a defect here must not end the reloads of a running agent
            log.exception("configuration not reloaded, the present one stays")
            return
        before, self._config = self._config, config
        # The line about a new level is part of the log if either level shows it.
        logs.set_up(min(before.log_level, config.log_level, key=LEVELS.index), config.log_format)
        log.info("configuration reloaded", extra={"applied": [n for n in _changed(before, config) if n in RELOADABLE]})
        logs.set_up(config.log_level, config.log_format)
        if restart := [name for name in _changed(self._running, config) if name not in RELOADABLE]:
            log.warning("settings changed that need a restart of the agent", extra={"settings": restart})


def _changed(one: Config, other: Config) -> list[str]:
    names = [field.name for field in msgspec.structs.fields(Config)]
    return [name for name in names if getattr(one, name) != getattr(other, name)]
