"""What the host has, kept current: uevents and slow rescans → topology → inventory → slices.

Everything here may wait for disks and vendor libraries, so the agent calls it on a worker thread; reading what was
found last never waits.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from dra_agent.errors import AgentError
from dra_agent.host import Host
from dra_agent.inventory import Change, Collector, Device, Inventory, InventorySettings, Watch
from dra_agent.slices import desired_slices
from dra_agent.topology import LiveTopology, Uevent

log = logging.getLogger(__name__)


class Hardware:
    """The devices of one host and the slices that describe them."""

    def __init__(self, host: Host, settings: InventorySettings, *, node: str, driver: str) -> None:
        """Scan the host; raises PermanentError where there is no sysfs, UsageError where a rule can never work."""
        self.host = host
        self._node = node
        self._driver = driver
        collector = Collector(host, settings, driver=driver)
        self._topology = LiveTopology(host)
        self._watch = Watch(collector, self._topology.snapshot())
        self._slices: list[dict[str, Any]] = []
        self._told: set[str] = set()
        self._describe()

    @property
    def inventory(self) -> Inventory:
        """The inventory as it was taken last."""
        return self._watch.inventory

    def lookup(self, pool: str, name: str) -> Device | None:
        """Find a device of the inventory."""
        return self._watch.lookup(pool, name)

    def slices(self) -> list[dict[str, Any]]:
        """Give the ResourceSlices of the inventory."""
        return self._slices

    def refresh(self, events: list[Uevent], *, rescan: bool) -> Change:
        """Look where the events say, or everywhere, and take the inventory again."""
        if rescan:
            self._topology.rescan()
        else:
            for event in events:
                self._topology.apply(event)
        change = self._watch.refresh(self._topology.snapshot())
        if change:
            self._describe()
            log.info(
                "devices changed",
                extra={
                    name: found
                    for name in ("added", "removed", "changed", "health")
                    if (found := getattr(change, name))
                },
            )
        return change

    def close(self) -> None:
        """Let go of vendor libraries."""
        self._watch.close()

    def _describe(self) -> None:
        told = set()
        for problem in self.inventory.problems:
            told.add(str(problem))
            if str(problem) not in self._told:
                level = logging.ERROR if problem.severity == "error" else logging.WARNING
                log.log(level, problem.what, extra={"where": problem.where, "todo": problem.todo})
        try:
            desired = desired_slices(
                self.inventory, node=self._node, driver=self._driver, published=self._slices, naming="fixed"
            )
        except AgentError as error:
            log.error("devices cannot be described", extra={"reason": str(error)})
            return
        for refused in desired.problems:
            told.add(str(refused))
            if str(refused) not in self._told:
                log.error("device left out", extra={"problem": str(refused)})
        self._told = told
        self._slices = desired.slices


def boot_id(proc: Path = Path("/proc")) -> str:
    """Name the boot that this host is in; "unknown" where the kernel does not say."""
    for root in (proc, Path("/proc")):
        try:
            return (root / "sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            continue
    return "unknown"
