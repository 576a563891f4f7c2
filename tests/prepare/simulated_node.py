"""The parts of a node that outlive an agent: disk, hardware, device nodes and CDI directory."""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.edits import EditProviders
from dra_agent.cdi.metadata import MetadataDirectory
from dra_agent.cdi.model import ContainerEdits
from dra_agent.cdi.registry import Registry, load_registry
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device, DeviceNode, NodeRole, device_key
from dra_agent.prepare import Preparer
from dra_agent.prepare.ledger import DeviceHeldError, HeldDevice, JournalLedger, LedgerEntry
from dra_agent.prepare.locks import KeyedLocks
from dra_agent.prepare.ownership import Ownership
from dra_agent.prepare.setup import DeviceSetup, SetupDevice, SetupOutcome, UnsuitableError

DRIVER = "dra-agent.internal"
POOL = "node-a/gpu"


class Crash(BaseException):
    """The agent is killed at this point."""


class Points:
    """Records the points at which the agent can be killed, and kills it at the chosen one."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.kill_at: int | None = None

    def __call__(self, name: str) -> None:
        self.seen.append(name)
        if self.kill_at is not None and len(self.seen) == self.kill_at + 1:
            raise Crash(name)

    def arm(self, kill_at: int | None) -> None:
        self.seen = []
        self.kill_at = kill_at


class MemoryLedger(JournalLedger):
    """An in-memory ledger with the durability of the real one: unsynced records may be lost in a crash."""

    def __init__(self, points: Points, disk: dict[str, LedgerEntry], *, keep_unsynced: bool = False) -> None:
        self.points = points
        self.disk = disk
        self.unsynced: dict[str, LedgerEntry] = {}
        self.keep_unsynced = keep_unsynced
        self.syncs = 0
        self.refuse: str | None = None
        self._lock = threading.Lock()

    def after_crash(self) -> MemoryLedger:
        if self.keep_unsynced:
            self.disk.update(self.unsynced)
        return MemoryLedger(self.points, self.disk, keep_unsynced=self.keep_unsynced)

    def lease(self, deadline: Deadline | None = None) -> AbstractContextManager[None]:
        return nullcontext()

    def start(self, entry: LedgerEntry, *, durable: bool) -> None:
        self.points("before start")
        with self._lock:
            for other in self.entries():
                for other_device in other.devices:
                    for device in entry.devices:
                        if other.uid != entry.uid and _are_exclusive(device, other_device):
                            raise DeviceHeldError(f"device {device.device} is held by {other.name}")
            self._check_disk()
            self.unsynced[entry.uid] = msgspec.structs.replace(entry, state="started")
            if durable:
                self._sync()
        self.points("after start")

    def complete(self, uid: str, payload: Any) -> None:
        self.points("before complete")
        with self._lock:
            self._check_disk()
            entry = self.get(uid)
            assert entry is not None
            self.unsynced[uid] = msgspec.structs.replace(entry, state="completed", payload=payload)
            self._sync()
        self.points("after complete")

    def release(self, uid: str) -> bool:
        self.points("before release")
        with self._lock:
            self._check_disk()
            held = self.get(uid) is not None
            self.unsynced.pop(uid, None)
            self.disk.pop(uid, None)
            self._sync()
        self.points("after release")
        return held

    def get(self, uid: str) -> LedgerEntry | None:
        return self.unsynced.get(uid) or self.disk.get(uid)

    def entries(self) -> list[LedgerEntry]:
        return sorted({**self.disk, **self.unsynced}.values(), key=lambda entry: entry.uid)

    def _check_disk(self) -> None:
        if self.refuse:
            raise RetryableError(self.refuse, where="ledger")

    def _sync(self) -> None:
        self.syncs += 1
        # Synced records are encoded as JSON, as in the real ledger.
        for uid, entry in self.unsynced.items():
            self.disk[uid] = msgspec.json.decode(msgspec.json.encode(entry), type=LedgerEntry)
        self.unsynced.clear()


def _are_exclusive(first: HeldDevice, second: HeldDevice) -> bool:
    if (
        device_key(first.pool, first.device) != device_key(second.pool, second.device)
        or first.admin_access
        or second.admin_access
    ):
        return False
    return first.share_id is None or second.share_id is None or first.share_id == second.share_id


class CrashingDirectory(SpecDirectory):
    """The real CDI directory with crash points around each change."""

    points: Points

    def write(self, uid: str, data: bytes) -> Path:
        self.points("before write")
        path = super().write(uid, data)
        self.points("after write")
        return path

    def delete(self, uid: str) -> bool:
        self.points("before delete")
        deleted = super().delete(uid)
        self.points("after delete")
        return deleted


class CrashingMetadata(MetadataDirectory):
    """The real metadata files with crash points around each change."""

    points: Points

    def _write(self, path: Path, data: bytes, *, in_place: bool) -> None:
        self.points("before metadata")
        super()._write(path, data, in_place=in_place)
        self.points("after metadata")

    def delete(self, uid: str) -> bool:
        self.points("before metadata goes")
        deleted = super().delete(uid)
        self.points("after metadata goes")
        return deleted


class PartitionParameters(msgspec.Struct, forbid_unknown_fields=True):
    size: int
    fail: bool = False


class Partitions:
    """A device setup whose effect outlives the agent: partitions of GPUs, with a size of up to 7."""

    kind = ("config.dra-agent.internal/v1", "Partition")
    parameters = PartitionParameters

    def __init__(self, points: Points, hardware: MutableMapping[str, str]) -> None:
        self.points = points
        self.hardware = hardware
        """The claim of each partition, by the key of the device."""
        self.calls: list[str] = []
        self.seen: list[SetupDevice] = []
        self.defaults: dict[str, PartitionParameters] = {}
        """Default parameters by device name."""
        self.generation = 0
        """Changes with every reset of the hardware."""

    def default(self, device: Device) -> msgspec.Struct | None:
        return self.defaults.get(device.name)

    def check(self, device: Device, parameters: Any) -> None:
        if device.family != "gpu":
            raise UnsuitableError(f"kind: a {device.family} has no partitions")
        if parameters.size > 7:
            raise PermanentError("size: at most 7", hint="ask for less")

    def set_up(
        self, uid: str, devices: Sequence[SetupDevice], parameters: Any, previous: Any, deadline: Deadline
    ) -> SetupOutcome:
        self.calls.append("set_up")
        self.seen = list(devices)
        edits = {}
        for item in devices:
            owner = self.hardware.setdefault(item.key, uid)
            assert owner == uid, f"{item.key} is partitioned for {owner} and {uid}"
            self.points(f"partition made on {item.key}")
            if parameters.fail:
                raise RetryableError("no room for the partition", where=item.key)
            edits[item.key] = ContainerEdits(env=(f"PARTITION={parameters.size}",))
        return SetupOutcome({"size": parameters.size, "generation": self.generation}, edits)

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        self.calls.append("tear_down")
        assert record == {"size": record["size"], "generation": self.generation}
        self.remove(uid, keys)

    def roll_back(self, uid: str, keys: Sequence[str], parameters: Any, deadline: Deadline) -> None:
        self.calls.append("roll_back")
        self.remove(uid, keys)

    def remove(self, uid: str, keys: Sequence[str]) -> None:
        for key in keys:
            if self.hardware.get(key) == uid:
                self.points(f"partition goes from {key}")
                del self.hardware[key]


class SimulatedNode:
    """A node with eight GPUs, and an agent that can be killed and restarted."""

    def __init__(self, root: Path, gpus: int = 8, *, metadata: bool | None = None, driver: str = DRIVER) -> None:
        self.driver = driver
        self.metadata_dir = root / "plugins" / DRIVER / "dra-device-metadata"
        self.metadata_enabled = metadata
        self.host = Host(sysfs=root / "sys", dev=root / "dev", proc=root / "proc")
        self.cdi = root / "cdi"
        self.points = Points()
        self.hardware: dict[str, str] = {}
        self.partitions = Partitions(self.points, self.hardware)
        self.more_setups: list[DeviceSetup] = []
        self.has_partitions = True
        """Whether the preparer of the next start knows the set-up of partitions."""
        self.before_lookup: Callable[[str, str], None] = lambda pool, name: None
        self.devices: dict[str, Device] = {}
        (self.host.dev / "dri").mkdir(parents=True, exist_ok=True)
        (self.host.dev / "kfd").touch()
        for index in range(gpus):
            paths: dict[str, NodeRole] = {
                f"/dev/dri/card{index}": "card",
                f"/dev/dri/renderD{128 + index}": "render",
                "/dev/kfd": "kfd",
            }
            for path in paths:
                self.host.dev_path(path).touch()
            nodes = tuple(DeviceNode(path, str(self.host.dev_path(path)), role) for path, role in paths.items())
            name = f"gpu-{index}"
            self.devices[name] = Device(name, "gpu", "amd", f"0000:{index:02x}:00.0", attributes={}, nodes=nodes)
        self.memory = MemoryLedger(self.points, {})
        self.ledger: JournalLedger = self.memory
        """Tests may replace it with the real ledger."""
        self.ownership: Ownership | None = None
        self.locks: KeyedLocks | None = None
        """Device locks that are shared with other agents on the same state directory."""
        self.start()

    def add_interface(self, name: str) -> Path:
        """Return the folder of a network interface that the host does not use."""
        folder = self.host.sysfs / "class/net" / name
        folder.mkdir(parents=True)
        return folder

    def lookup(self, pool: str, name: str) -> Device | None:
        self.before_lookup(pool, name)
        return self.devices.get(name) if pool.rpartition("/")[2] == "gpu" else None

    def start(self) -> None:
        self.specs = CrashingDirectory(self.cdi, self.driver)
        self.specs.points = self.points
        setups: list[DeviceSetup] = [*([self.partitions] if self.has_partitions else ()), *self.more_setups]
        self.metadata: CrashingMetadata | None = None
        if self.metadata_enabled is not None:
            self.metadata = CrashingMetadata(self.metadata_dir, self.driver, enabled=self.metadata_enabled)
            self.metadata.points = self.points
        self.preparer = Preparer(
            self.driver,
            self.ledger,
            self.specs,
            self.lookup,
            node=POOL.partition("/")[0],
            host=self.host,
            edit_providers=EditProviders(self.host, directories=[self.cdi]),
            setups=setups,
            metadata=self.metadata,
            ownership=self.ownership,
            device_locks=self.locks,
        )

    def crash_and_restart(self) -> None:
        self.points.arm(None)
        self.ledger = self.memory = self.memory.after_crash()
        self.start()

    def registry(self) -> Registry:
        return load_registry([self.cdi])

    def usable(self, uid: str) -> bool:
        """Return whether a container could use the claim now: its CDI ids resolve, and their mounts exist."""
        registry = self.registry()
        entry = self.ledger.get(uid)
        if entry is None:
            return False
        ids = [name for device in entry.payload["devices"] for name in device["cdi_device_ids"]]
        for name in ids:
            if name not in registry.devices:
                return False
            registered = registry.devices[name]
            mounts = registered.device.container_edits.mounts + registered.spec.container_edits.mounts
            if not all(Path(mount.host_path).exists() for mount in mounts):
                return False
        return bool(ids)


def result(device: str, request: str = "gpus", **more: Any) -> dict[str, Any]:
    return {"request": request, "driver": DRIVER, "pool": POOL, "device": device, **more}


def claim(uid: str, *devices: str | dict[str, Any], config: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return an allocated ResourceClaim as the API server does."""
    results = [result(device) if isinstance(device, str) else device for device in devices]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"claim-{uid}", "namespace": "default", "uid": uid, "resourceVersion": "7"},
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu"}}]}},
        "status": {"allocation": {"devices": {"results": results, "config": list(config)}}},
    }


def partition(size: int = 2, requests: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    version, kind = Partitions.kind
    parameters = {"apiVersion": version, "kind": kind, "size": size, **more}
    entry = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}
    return entry | ({"requests": list(requests)} if requests else {})
