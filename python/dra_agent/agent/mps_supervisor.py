"""Supervises the MPS daemons of GPU shares while the agent runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dra_agent.agent.config import Config
from dra_agent.agent.device_state import DeviceState
from dra_agent.agent.liveness import MonitoredThread
from dra_agent.agent.mode import Mode
from dra_agent.supervisor import on_thread, supervisor

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 5.0
"""Seconds between two checks of the daemons: they outlive agents, so the kernel reports their
end to another process."""
RECORD_TIMEOUT_S = 60.0
"""Seconds after which the record of their failures is reported as hung."""


class MpsSupervisor:
    """Restarts MPS daemons that ended, and reports devices whose daemon fails, from `start` to `stop`.

    It does nothing on a host where nothing is or was shared.
    """

    def __init__(
        self,
        config: Config,
        check: Callable[[], dict[str, str]],
        thread: MonitoredThread,
        device_state: DeviceState,
        mode: Mode,
        *,
        is_newest: Callable[[], bool],
        interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        """`check` restarts daemons that ended, and returns failures by device: `thread` sets them in `device_state`.

        `is_newest`: of several agents on one node only the newest supervises the daemons.
        """
        self._check = check
        self._thread = thread
        self._device_state = device_state
        self._mode = mode
        self._is_newest = is_newest
        self._interval_s = interval_s
        self._needed = bool(config.inventory.share) or any(
            (config.state_dir / name).exists() for name in ("mps", "limits")
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Watch daemons."""
        if not self._needed:
            return
        self._task = supervisor().loop("sharing", self._watch)

    async def stop(self) -> None:
        """Stop; the daemons continue for prepared claims."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            try:
                if self._is_newest():
                    await self._record(await on_thread(self._check))
            except Exception:  # a failed check must not end the supervision
                log.exception("MPS daemons not checked this time")
            await asyncio.sleep(self._interval_s)

    async def _record(self, failures: dict[str, str]) -> None:
        if await self._thread.run(
            "recording failures of shares", RECORD_TIMEOUT_S, lambda: self._device_state.set_setup_failures(failures)
        ):
            self._mode.devices_changed()
