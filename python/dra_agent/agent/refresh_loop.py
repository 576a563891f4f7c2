"""Schedules rescans of the hardware: soon after kernel events, and at a long interval.

`DeviceState` does the scan; this part runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from dra_agent.agent.device_state import DeviceState
from dra_agent.agent.liveness import MonitoredThread
from dra_agent.agent.tree_watch import TreeWatch
from dra_agent.errors import AgentError
from dra_agent.inventory.tracker import InventoryDiff
from dra_agent.supervisor import supervisor
from dra_agent.topology import Uevent, UeventSocket

log = logging.getLogger(__name__)

DEBOUNCE_S = 0.1
"""Seconds to wait after an event: adding or removing a device causes a burst of them."""
POLL_INTERVAL_S = 1.0
"""Seconds between two polls of the vendor libraries for events: the libraries wait in another process, and some issues
end with time alone."""
SCAN_TIMEOUT_S = 120.0
"""Seconds after which a scan is reported as hung."""
HEALTH_INTERVAL_S = 15.0
"""Seconds between two health checks, which describe every device again; events in between only those that they name."""
RESCAN_INTERVAL_S = 300.0
"""Seconds between two full scans, which find changes without an event."""
UNANNOUNCED_INTERVAL_S = 1.0
"""Both where nothing announces changes: neither uevents nor, for simulated hosts and other roots (--simulate,
--sysfs-root), inotify(7). Also the minimum between two scans for changes that inotify reports: each is full."""
_VIRTUAL = "/devices/virtual/"
_UNRELATED_SUBSYSTEMS = frozenset({"net", "queues", "bdi", "block", "workqueue"})
"""Subsystems whose virtual devices are never claimed. Each pod's interface pair causes about 20 events. Interfaces also
decide whether the host uses a NIC, but so do routes, which change without a uevent: the health check finds both.
"""


class RefreshLoop:
    """Refreshes the devices after uevents and at an interval, from `start` to `stop`."""

    def __init__(
        self,
        device_state: DeviceState,
        *,
        thread: MonitoredThread,
        changed: Callable[[], None],
        follows_kernel: bool,
        watch: TreeWatch | None = None,
    ) -> None:
        """`thread` runs the scans; `changed` is called on the loop after devices changed.

        `watch` announces changes of a host that is not the kernel's.
        """
        self._device_state = device_state
        self._changed = changed
        self._thread = thread
        self._follows_kernel = follows_kernel
        self._watch = watch
        self._announced = follows_kernel
        """Whether changes are announced, so that scans at a long interval suffice."""
        self._debounce_until = float("-inf")
        """When the scan for an announced change may begin."""
        self._socket: UeventSocket | None = None
        self._events: list[Uevent] = []
        self._lost = False
        self._failures: dict[str, str] = {}
        """The reasons why the last scan, or the last poll of the libraries, failed."""
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Subscribe to kernel events, or to the files of a simulated host, and start."""
        if self._follows_kernel:
            try:
                self._socket = UeventSocket()
                asyncio.get_running_loop().add_reader(self._socket.fileno(), self._receive)
            except AgentError as error:
                log.warning("added and removed devices are detected late", extra={"reason": str(error)})
        elif self._watch is not None:
            self._announced = self._watch.start(self._tree_changed)
        self._task = supervisor().loop("hardware", self._run)

    async def stop(self) -> None:
        """Stop listening."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
        if self._watch is not None:
            self._watch.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _receive(self) -> None:
        assert self._socket is not None
        try:
            received = self._socket.receive()
        except (OSError, ValueError) as error:  # an invalid message: only a rescan finds the change
            log.warning("uevent not understood", extra={"reason": str(error)})
            self._lost = True
        else:
            events = [event for event in received.events if not _is_unrelated(event)]
            if not events and not received.lost:
                return
            self._events += events
            self._lost = self._lost or received.lost
        self._woken.set()

    def _tree_changed(self) -> None:
        self._lost = True
        self._woken.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        health = HEALTH_INTERVAL_S if self._announced else UNANNOUNCED_INTERVAL_S
        rescan_every = RESCAN_INTERVAL_S if self._announced else UNANNOUNCED_INTERVAL_S
        rescan_at = loop.time() + rescan_every
        scan_at = loop.time() + health
        while True:
            event_change = None
            try:
                async with asyncio.timeout(max(0.0, min(POLL_INTERVAL_S, scan_at - loop.time()))):
                    await self._woken.wait()
                await asyncio.sleep(max(DEBOUNCE_S, self._debounce_until - loop.time()))
            except TimeoutError:
                if loop.time() < scan_at:
                    event_change = await self._guarded("listening to the devices", self._device_state.poll_events)
                    if not event_change:
                        continue
                    if self._follows_kernel:
                        self._changed()
                        continue
                    # The device may be removed, with a kernel event pending: rescan first, and report once.
                    rescan_at = loop.time()
            self._woken.clear()
            events, self._events = self._events, []
            rescan, self._lost = self._lost or loop.time() >= rescan_at, False
            if rescan:
                rescan_at = loop.time() + rescan_every
                if not self._follows_kernel:
                    self._debounce_until = loop.time() + UNANNOUNCED_INTERVAL_S
            everything = rescan or not events or loop.time() >= scan_at
            if everything:
                scan_at = loop.time() + health
            scan = partial(self._scan, events, rescan=rescan, everything=everything)
            if await self._guarded("scanning the host", scan) or event_change:
                self._changed()

    def _scan(self, events: list[Uevent], *, rescan: bool, everything: bool) -> InventoryDiff:
        if rescan and self._watch is not None and self._announced:
            # Before the files are read: a later change of a new directory is an event.
            self._watch.follow()
        return self._device_state.refresh(events, rescan=rescan, everything=everything)

    async def _guarded(self, operation: str, call: Callable[[], InventoryDiff]) -> InventoryDiff | None:
        try:
            change = await self._thread.run(operation, SCAN_TIMEOUT_S, call)
        except Exception as error:  # the known devices must remain available
            # It is tried once a second: only a new reason is logged.
            if str(error) != self._failures.get(operation):
                defect = None if isinstance(error, AgentError | OSError) else error
                log.error("the host cannot be scanned", extra={"reason": str(error)}, exc_info=defect)
            self._failures[operation] = str(error)
            return None
        self._failures.pop(operation, None)
        return change


def _is_unrelated(event: Uevent) -> bool:
    return event.subsystem in _UNRELATED_SUBSYSTEMS and event.devpath.startswith(_VIRTUAL)
