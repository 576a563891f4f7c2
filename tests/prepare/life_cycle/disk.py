"""What lies on the host's disk, read without the product's code where that is short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dra_agent.prepare.ownership import OwnerRecord
from prepare.life_cycle.wanted import Wanted


def ledger(state_dir: Path) -> dict[str, dict[str, Any]]:
    """Claims by uid, as docs/ledger.md describes the files: a snapshot, then journals; each record has a number."""
    entries: dict[str, dict[str, Any]] = {}
    last = -1
    for file in [state_dir / "ledger" / "snapshot", *sorted((state_dir / "ledger").glob("journal-????????"))]:
        for record in _records(file):
            if file.name == "snapshot" and record["kind"] == "claim":
                entries[record["uid"]] = record
            elif record["kind"] == "end":
                last = record["seq"]
            elif file.name != "snapshot" and record["seq"] > last:
                last = record["seq"]
                if record["kind"] == "claim":
                    entries[record["uid"]] = record
                elif record["kind"] == "release":
                    entries.pop(record["uid"], None)
    return entries


def _records(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    lines = file.read_bytes().rstrip(b"\0").split(b"\n")
    return [msgspec.json.decode(line[18:]) for line in lines if line]


def held_by(entry: dict[str, Any]) -> set[tuple[str, str | None]]:
    """Devices of an entry, with the share."""
    return {(item["device"], item.get("share_id")) for item in entry["devices"]}


def specs(cdi: Path, driver: str) -> dict[str, dict[str, Any]]:
    """CDI specs by claim; None for one that cannot be read."""
    found = {}
    for file in cdi.glob(f"{driver}-claim_*.json"):
        uid = file.name.removeprefix(f"{driver}-claim_").removesuffix(".json")
        try:
            found[uid] = msgspec.json.decode(file.read_bytes())
        except msgspec.DecodeError:
            found[uid] = {}
    return found


def provides(spec: dict[str, Any] | None, ids: list[str], wanted: Wanted) -> bool:
    """Tell whether a spec has what containers of a claim are to be given."""
    if not spec or "kind" not in spec:
        return False
    devices = {f"{spec['kind']}={device['name']}": device for device in spec["devices"]}
    if not ids or not set(ids) <= devices.keys():
        return False
    env = [text for device in devices.values() for text in device.get("containerEdits", {}).get("env", [])]
    env += spec.get("containerEdits", {}).get("env", [])
    partitions = {text for text in env if text.startswith("PARTITION=")}
    return partitions == ({f"PARTITION={wanted.partition}"} if wanted.partition else set())


def hardware(folder: Path) -> dict[str, tuple[str, str]]:
    """Partitions: driver and uid by device."""
    found = {}
    for file in folder.iterdir():
        driver, uid = file.read_text().split()
        found[file.name] = (driver, uid)
    return found


def owners(folder: Path) -> dict[str, OwnerRecord]:
    """Owner files by address; without those that name nobody."""
    found = {}
    for file in folder.iterdir():
        content = file.read_bytes().partition(b"\n")[0]
        if content:
            found[file.name] = msgspec.json.decode(content, type=OwnerRecord)
    return found
