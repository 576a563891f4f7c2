"""A simulated host with an inventory that stays open, a ledger of made-up claims, and a sampler with a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from dra_agent.claim import ClaimDevice
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.settings import InventorySettings
from dra_agent.metrics.registry import Metrics
from dra_agent.metrics.snapshot import MetricsSnapshot
from dra_agent.metrics.telemetry import TelemetryMetrics
from dra_agent.prepare.ledger import HeldDevice, LedgerEntry
from dra_agent.prepare.record import ClaimRecord
from dra_agent.telemetry.sampler import DEVICE_TIMEOUT_S, Sampler
from dra_agent.topology import LiveTopology

INTERVAL_S = 10.0


def claim(name: str, *devices: HeldDevice, uid: str = "", state: str = "completed") -> LedgerEntry:
    return LedgerEntry(uid=uid or f"uid-{name}", namespace="team-a", name=name, devices=devices, state=state)


def held(device: str, *, share: str | None = None, admin: bool = False, shared: bool = False) -> HeldDevice:
    family = device.partition("-")[0]
    return HeldDevice(f"node-1/{family}", device, "r", share_id=share, admin_access=admin, shared=shared)


PODS = {
    "a": "1b4e28ba-2fa1-11d2-883f-0016d3cca427",
    "b": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    "late": "6ba7b811-9dad-11d1-80b4-00c04fd430c8",
}
"""UIDs of pods."""


def cgroup_of(pod: str) -> str:
    """Return the cgroup of a container of a pod, as a kubelet and containerd with systemd's driver name it."""
    uid = PODS[pod].replace("-", "_")
    return f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice/cri-containerd-a.scope"


def recorded(name: str, device: str, *shares: str | None, admin: bool = False) -> LedgerEntry:
    """Return a prepared claim as the agent records it: on a whole device for a share of None."""
    family = device.partition("-")[0]
    devices = tuple(ClaimDevice(f"node-1/{family}", device, ("r",), share, admin) for share in shares)
    claimed = tuple(held(device, share=share, admin=admin) for share in shares)
    payload = msgspec.to_builtins(ClaimRecord(devices))
    return LedgerEntry(f"uid-{name}", "team-a", name, claimed, "completed", payload)


class Rig:
    """One host; `sampler` is replaced by `restart`."""

    def __init__(self, host: Host, state_dir: Path, settings: InventorySettings | None = None) -> None:
        self.host = host
        self.state_dir = state_dir
        self.entries: list[LedgerEntry] = []
        self.read_entries: Callable[[], list[LedgerEntry]] = lambda: list(self.entries)
        self.now_s = 1000.0
        self.boot_id = "boot-1"
        self.interval_s = INTERVAL_S
        self.device_timeout_s = DEVICE_TIMEOUT_S
        self.xids: dict[str, int] = {}
        self.pods: dict[str, frozenset[str]] = {}
        """UIDs of the pods by UID of their claim."""
        self._collector = Collector(host, settings or InventorySettings())
        self._topology = LiveTopology(host)
        self.inventory = self.scan()
        self.claim_labels = True
        self.sampler = self._new_sampler()

    def scan(self) -> Inventory:
        """Collect the inventory, however long libraries need to start."""
        self.inventory = self._collector.collect(self._topology.snapshot())
        while self._collector.wait_for_start():
            self.inventory = self._collector.collect(self._topology.snapshot())
        return self.inventory

    def restart(self) -> None:
        """Make another sampler, as a restarted agent does."""
        self.sampler.stop()
        self.sampler = self._new_sampler()

    def _new_sampler(self) -> Sampler:
        return Sampler(
            self.host,
            self.state_dir,
            self.boot_id,
            self.interval_s,
            inventory=lambda: self.inventory,
            entries=lambda: self.read_entries(),
            xids=lambda: dict(self.xids),
            pods=lambda: dict(self.pods),
            now=lambda: self.now_s,
            device_timeout_s=self.device_timeout_s,
        )

    def sample(self, after_s: float = INTERVAL_S) -> None:
        """Sample once, some seconds later."""
        self.now_s += after_s
        self.sampler.sample()

    def exposition(self) -> str:
        """Return the text of /metrics, with telemetry as the only additional collector."""
        metrics = Metrics(MetricsSnapshot)
        metrics.add(
            TelemetryMetrics(
                self.sampler.snapshot,
                lambda: self.inventory,
                "node-1",
                lambda: {entry.uid for entry in self.entries},
                claim_labels=self.claim_labels,
            )
        )
        return metrics.render()[0].decode()

    def series(self) -> dict[str, float]:
        """Return the series that have a value."""
        lines = [line for line in self.exposition().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def of_claim(self, metric: str, name: str, device: str) -> float | None:
        """Return a value of a claim; None if it is absent."""
        labels = f'{{claim="{name}",device="{device}",namespace="team-a"}}'
        return self.series().get(f"dra_agent_claim_{metric}{labels}")

    def close(self) -> None:
        self.sampler.stop()
        self._collector.close()
