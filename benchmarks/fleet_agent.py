"""One agent of a fleet: Kubernetes mode as it runs in production, on a host whose devices the benchmark sets.

Publisher, watches, conflict detection, drain, Events and leadership are composed by `KubernetesMode` itself. Hundreds
share one event loop; each has its own connections, state directory, ledger and sockets. Scans, metrics and set-ups of
devices, which send nothing to the API server, are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

from fleet_inventory import DRIVER

from dra_agent.agent.config import Config
from dra_agent.agent.device_state import DeviceState
from dra_agent.agent.kubernetes_mode import KubernetesMode
from dra_agent.agent.leadership import Leadership
from dra_agent.agent.liveness import LivenessMonitor, MonitoredThread
from dra_agent.agent.rolling_update import InstanceRegistry
from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError
from dra_agent.health.published_health import DeviceHealthStore
from dra_agent.host import Host
from dra_agent.inventory.model import Device, Inventory
from dra_agent.prepare import Preparer
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.reclaim.service import ReclaimService
from dra_agent.topology import PciFunction

BOOT = "fleet"


class SimulatedDevices:
    """What Kubernetes mode reads of a DeviceState."""

    def __init__(self, host: Host, inventory: Inventory, node: str) -> None:
        self.host = host
        self.inventory = inventory
        self.functions: tuple[PciFunction, ...] = ()
        self.published_health = DeviceHealthStore(node)
        self.published_health.publish(inventory)

    def lookup(self, pool: str, name: str) -> Device | None:
        """Find a device."""
        return self.inventory.lookup(pool, name)


class NoClaims:
    """What Kubernetes mode uses of a Preparer: no kubelet runs, so nothing is prepared."""

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        """Refuse the claim."""
        self._refuse()

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Refuse the claim."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise PermanentError("a simulated agent prepares no claims")


class FleetAgent:
    """One agent from `open` to `stop`. Two with different uids on one folder are those of a rolling update."""

    def __init__(self, kubeconfig: Path, node: str, folder: Path, devices: SimulatedDevices, *, uid: str) -> None:
        self.node = node
        self.devices = devices
        state = folder / "s"
        state.mkdir(parents=True, exist_ok=True)
        self._config = Config(
            kubeconfig=kubeconfig,
            node_name=node,
            driver_name=DRIVER,
            kubelet_dir=folder / "k",
            cdi_dir=folder / "c",
            state_dir=state,
            run_dir=folder / "r",
            pod_uid=uid,
        )
        self._instances = InstanceRegistry(state, uid)
        self.leadership = Leadership(self._instances)
        liveness = LivenessMonitor()
        thread = MonitoredThread("hardware", liveness)
        self._closers: list[Callable[[], None]] = [self._instances.close, thread.shutdown]
        self.mode = KubernetesMode(
            self._config,
            thread,
            None,
            liveness=liveness,
            leadership=self.leadership,
            on_status_change=lambda: None,
        )
        self.reclaim: ReclaimService | None = None
        self._ledger: JournalLedger | None = None

    async def open(self) -> None:
        """Start what sends nothing to the API server: sockets, credentials and the ledger."""
        await self.mode.open()
        config = self._config
        self._ledger = await asyncio.to_thread(JournalLedger, config.state_dir, BOOT, shared_as=config.pod_uid)
        self._closers.append(self._ledger.close)

    async def start(self) -> None:
        """Start the rest in the order of a real agent."""
        config = self._config
        assert self._ledger is not None
        sources = self.mode.signal_sources(config.reclaim)
        self.reclaim = ReclaimService(config.state_dir, BOOT, sources, is_newest=self._instances.is_newest)
        self.mode.attach_reclaim(self.reclaim)
        await self.reclaim.start()
        # `KubernetesMode` reads only what SimulatedDevices has.
        await self.mode.serve(cast(Preparer, NoClaims()), cast(DeviceState, self.devices), self._ledger)

    def set_inventory(self, inventory: Inventory) -> None:
        """Change the devices, as a rescan does."""
        self.devices.inventory = inventory
        self.devices.published_health.publish(inventory)
        self.mode.devices_changed()

    async def stop(self) -> None:
        """Stop; the slices stay."""
        if self.reclaim is not None:
            await self.reclaim.stop()
        await self.mode.close()
        while self._closers:
            self._closers.pop()()
