"""The labels of a Node as a feature file of Node Feature Discovery, whose worker makes labels of them.

The agent then needs no permission to change its Node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

from dra_agent import atomic_file
from dra_agent.agent.fabric_labels import fabric_labels, label_prefix
from dra_agent.inventory.model import Inventory
from dra_agent.reconcile_loop import reconcile
from dra_agent.retry import Backoff
from dra_agent.supervisor import supervisor
from dra_agent.thread_write import END_TIMEOUT_S, write_on_thread

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 16
_MODE = 0o644


class FeatureFile:
    """Writes the file from `start` to `stop`; it stays after that. Without the option, `start` removes it."""

    def __init__(
        self,
        folder: Path,
        *,
        driver: str,
        is_wanted: bool,
        inventory: Callable[[], Inventory],
        is_leader: Callable[[], bool],
    ) -> None:
        """`folder` is the directory of NFD's local source, which exists.

        `is_leader`: whether this agent writes. When it becomes the leader, `check` is called.
        """
        self._path = folder / f"dra-agent-{driver}"
        self._driver = driver
        self._is_wanted = is_wanted
        self._inventory = inventory
        self._is_leader = is_leader
        self._failure = ""
        self._is_stopped = False
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to write."""

        def write() -> Coroutine[Any, Any, NoReturn]:
            return reconcile(self._changed, self._write_if_leader, Backoff(first=0.5, longest=60.0))

        self._task = supervisor().loop("feature file", write)

    def check(self) -> None:
        """Check whether the file must change, after a change of the devices or of the leader; returns at once."""
        self._changed.set()

    async def stop(self) -> None:
        """Stop writing. Afterwards the file does not change: a write that takes too long to end has no effect."""
        self._is_stopped = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _write_if_leader(self, backoff: Backoff) -> float | None:
        # A slow disk must not delay a response to the kubelet.
        if self._is_leader() and not await write_on_thread(self._write, timeout_s=END_TIMEOUT_S):
            return backoff.delay()
        return None

    def _write(self) -> bool:
        """Write or remove the file if it differs; return False if that must be tried again."""
        atomic_file.remove_leftovers(self._path.parent, f".{self._path.name}.")
        try:
            present = self._read()
            if self._is_wanted:
                labels = fabric_labels(self._inventory(), self._driver, present or {})
                if labels != present:
                    lines = "".join(f"{key}={value}\n" for key, value in sorted(labels.items()))
                    atomic_file.write(self._path, lines.encode(), mode=_MODE, is_wanted=self._may_write)
            elif present is not None and self._may_write():
                atomic_file.remove(self._path)
        except OSError as error:
            reason = error.strerror or str(error)
            if self._is_wanted and reason != self._failure:
                log.error(
                    "the feature file for the labels of the node is not written",
                    extra={"file": str(self._path), "reason": reason, "todo": "mount the directory of NFD's worker"},
                )
            self._failure = reason
            return False
        self._failure = ""
        return True

    def _may_write(self) -> bool:
        """Whether this agent still writes the file: the disk may have been slow."""
        return not self._is_stopped and self._is_leader()

    def _read(self) -> dict[str, str] | None:
        """Return the labels in the file; None if it does not exist. Other contents are replaced."""
        try:
            text = atomic_file.read(self._path, MAX_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return None
        pairs = (line.partition("=") for line in text.splitlines())
        return {key: value for key, _, value in pairs if key.startswith(label_prefix(self._driver))}
