"""What agents of commits 3e98ba5 and b202e58 read from a state directory, with their types.

They are strict where those agents are: a file that does not decode here is one that they refuse or set aside. As those
agents do, they skip fields that they do not know.
"""

from __future__ import annotations

import sqlite3
import zlib
from pathlib import Path
from typing import Any, Literal

import msgspec

MAX_FILE_BYTES = 1 << 20
FRAME_BYTES = 18
"""Of a ledger record: "LLLLLLLL CCCCCCCC "."""


class HeldDevice(msgspec.Struct, frozen=True):
    """rust/ledger/src/entry.rs"""

    pool: str
    device: str
    request: str = ""
    share_id: str | None = None
    admin_access: bool = False
    shared: bool = False


class DeviceRecord(msgspec.Struct, frozen=True):
    """prepare/record.py"""

    pool: str
    device: str
    requests: tuple[str, ...]
    share_id: str | None = None
    admin_access: bool = False
    consumed_capacity: dict[str, str] = {}
    cdi_device_ids: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


class SetupRecord(msgspec.Struct, frozen=True):
    """prepare/record.py"""

    api_version: str
    kind: str
    devices: tuple[str, ...]
    parameters: Any = None
    done: bool = False
    record: Any = None


class ClaimRecord(msgspec.Struct, frozen=True):
    """prepare/record.py: the payload of a ledger entry."""

    devices: tuple[DeviceRecord, ...] = ()
    setups: tuple[SetupRecord, ...] = ()
    pod_claim_name: str | None = None


class Entry(msgspec.Struct, frozen=True):
    """rust/ledger/src/entry.rs"""

    uid: str
    namespace: str = ""
    name: str = ""
    state: str = "started"
    devices: tuple[HeldDevice, ...] = ()
    payload: ClaimRecord = ClaimRecord()
    boot_id: str = ""


class MigInstance(msgspec.Struct, frozen=True):
    """inventory/nvidia/made.py"""

    device: str
    profile: int
    start: int
    size: int
    holders: tuple[str, ...]
    leaving: str = ""


class MigNote(msgspec.Struct, frozen=True):
    """inventory/nvidia/made.py"""

    gpu: str
    boot: str
    instances: tuple[MigInstance, ...] = ()


class Attribute(msgspec.Struct, frozen=True):
    """inventory/api.py"""

    integer: int | None = msgspec.field(name="int", default=None)
    boolean: bool | None = msgspec.field(name="bool", default=None)
    string: str | None = None
    version: str | None = None


class DeviceNode(msgspec.Struct, frozen=True):
    """inventory/device.py"""

    path: str
    host_path: str
    role: (
        Literal["gpu", "capability", "card", "render", "kfd", "control", "uverbs", "rdma-cm", "accel", "vendor"]
        | Literal["vfio", "vfio-control"]
    )


class Device(msgspec.Struct, frozen=True):
    """inventory/device.py, without texts for people"""

    name: str
    family: Literal["gpu", "nic", "fpga", "accelerator"]
    vendor: str
    pci_address: str
    attributes: dict[str, Attribute]
    capacity: dict[str, dict[str, Any]] = {}
    allow_multiple_allocations: bool = False
    nodes: tuple[DeviceNode, ...] = ()
    identity: dict[str, str] = {}
    order: int = 0
    numa_node: int | None = None
    pcie_switch: str | None = None
    health: Literal["healthy", "unhealthy", "unmonitored"] = "healthy"


class Handover(msgspec.Struct, frozen=True):
    """inventory/handover.py"""

    address: str
    uid: str
    key: str
    driver: str | None
    override: str | None
    device: Device


class TimeSlice(msgspec.Struct, frozen=True):
    """setup/timeslice/holders.py"""

    uuid: str
    interval: Literal["Default", "Short", "Medium", "Long"]
    compute_mode: str
    holders: tuple[str, ...]


class State(msgspec.Struct, frozen=True):
    """Everything that the agent reads for claims and their devices, with names in place of uids and of boots."""

    claims: dict[str, Entry]
    """By name: what the ledger holds."""
    objects: dict[str, dict[str, Any]]
    """By kind and name: the spec, and the results of the allocation."""
    mig: dict[str, MigNote]
    vfio: dict[str, Handover]
    timeslice: dict[str, TimeSlice]


def read_state(state: Path) -> State:
    """Read a state directory. Raises msgspec.DecodeError or ValueError for what those agents cannot read."""
    entries = read_ledger(state / "ledger")
    names = {entry.uid: entry.name for entry in entries.values()}
    boots = {entry.boot_id: "the boot" for entry in entries.values() if entry.boot_id}

    def named(data: bytes) -> bytes:
        for found, name in (names | boots).items():
            data = data.replace(found.encode(), name.encode())
        return data

    def notes(folder: str, kind: Any) -> dict[str, Any]:
        paths = sorted((state / folder).glob("*.json"))
        return {path.stem: msgspec.json.decode(named(path.read_bytes()), type=kind) for path in paths}

    claims = {
        entry.name: _with_records(msgspec.json.decode(named(msgspec.json.encode(entry)), type=Entry))
        for entry in entries.values()
    }
    return State(
        claims=dict(sorted(claims.items())),
        objects=read_store(state / "objects.db"),
        mig=notes("mig", MigNote),
        vfio=notes("vfio", Handover),
        timeslice=notes("timeslice", TimeSlice),
    )


def _with_records(entry: Entry) -> Entry:
    """Decode what the set-ups recorded: only that of passthrough is used again (setup/*/setup.py, `tear_down`)."""
    setups = [
        msgspec.structs.replace(
            one, record=msgspec.convert(one.record, list[Handover]) if one.kind == "VfioConfig" else None
        )
        for one in entry.payload.setups
    ]
    payload = msgspec.structs.replace(entry.payload, setups=tuple(setups))
    return msgspec.structs.replace(entry, payload=payload)


def read_ledger(folder: Path) -> dict[str, Entry]:
    """Return the entries of claims by uid, from the snapshot and the journals: rust/ledger/src/recovery.rs."""
    included = 0
    changes: list[tuple[int, dict[str, Any]]] = []
    for path in (folder / "snapshot", *sorted(folder.glob("journal-????????"))):
        if not path.exists():
            continue
        records = list(_records(path.read_bytes()))
        if records[0]["kind"] != path.name.partition("-")[0] or records[0]["format"] != 1:
            raise ValueError(f"{path}: {records[0]}")
        if path.name == "snapshot":
            included = records[0]["seq"]
            changes += [(0, record) for record in records]
        else:
            changes += [(record["seq"], record) for record in records if record["seq"] > included]
    entries: dict[str, Entry] = {}
    for _, record in sorted(changes, key=lambda change: change[0]):
        if record["kind"] == "claim":
            entries[record["uid"]] = msgspec.convert(record, Entry)
        elif record["kind"] == "release":
            entries.pop(record["uid"], None)
        elif record["kind"] not in ("journal", "snapshot", "end"):
            raise ValueError(f"a record of a kind that it does not know: {record}")
    return entries


def _records(data: bytes) -> list[dict[str, Any]]:
    """Decode the records of a file: rust/ledger/src/record.rs."""
    records: list[dict[str, Any]] = []
    while data.strip(b"\0"):
        length, crc = int(data[:8], 16), int(data[9:17], 16)
        text = data[FRAME_BYTES : FRAME_BYTES + length]
        if data[8:9] + data[17:18] != b"  " or zlib.crc32(text) != crc or data[FRAME_BYTES + length :][:1] != b"\n":
            raise ValueError(f"no record: {data[:80]!r}")
        records.append(msgspec.json.decode(text))
        data = data[FRAME_BYTES + length + 1 :]
    return records


def read_store(path: Path) -> dict[str, dict[str, Any]]:
    """Return the objects of the store: standalone/store.py."""
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute("SELECT kind, namespace, name, body FROM objects ORDER BY position").fetchall()
        columns = [row[1] for row in connection.execute("PRAGMA table_info(objects)")]
    finally:
        connection.close()
    if columns != ["position", "kind", "namespace", "name", "body"]:
        raise ValueError(f"{path}: {columns}")
    objects = {}
    for kind, namespace, name, body in rows:
        value = msgspec.json.decode(body, type=dict[str, Any])
        allocation = value.get("status", {}).get("allocation", {})
        results = allocation.get("devices", {}).get("results")
        objects[f"{kind}/{namespace}/{name}"] = {"spec": value["spec"], "results": results}
    return objects
