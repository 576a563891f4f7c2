"""The contents of the disk of the host, mostly read without product code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dra_agent.prepare.ownership import OwnerRecord
from prepare.life_cycle.allocation import Allocation


def ledger(state_dir: Path) -> dict[str, dict[str, Any]]:
    """Return claims by uid, from the files of docs/explanation/ledger.md: a snapshot, then journals of records."""
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
    """Return the devices of an entry with their share ids."""
    return {(item["device"], item.get("share_id")) for item in entry["devices"]}


def specs(cdi: Path, driver: str) -> dict[str, dict[str, Any]]:
    """Return CDI specs by claim uid; empty for one that cannot be decoded."""
    specs_ = {}
    for file in cdi.glob(f"{driver}-claim_*.json"):
        uid = file.name.removeprefix(f"{driver}-claim_").removesuffix(".json")
        try:
            specs_[uid] = msgspec.json.decode(file.read_bytes())
        except msgspec.DecodeError:
            specs_[uid] = {}
    return specs_


def provides(spec: dict[str, Any] | None, ids: list[str], allocation: Allocation) -> bool:
    """Return whether a spec has the device ids and edits of a claim."""
    if not spec or "kind" not in spec:
        return False
    devices = {f"{spec['kind']}={device['name']}": device for device in spec["devices"]}
    if not ids or not set(ids) <= devices.keys():
        return False
    env = [text for device in devices.values() for text in device.get("containerEdits", {}).get("env", [])]
    env += spec.get("containerEdits", {}).get("env", [])
    partitions = {text for text in env if text.startswith("PARTITION=")}
    return partitions == ({f"PARTITION={allocation.partition}"} if allocation.partition else set())


def hardware(folder: Path) -> dict[str, tuple[str, str]]:
    """Return driver and claim uid of each partition by device."""
    specs_ = {}
    for file in folder.iterdir():
        driver, uid = file.read_text().split()
        specs_[file.name] = (driver, uid)
    return specs_


def owners(folder: Path) -> dict[str, OwnerRecord]:
    """Return owner records by address, without empty files."""
    specs_ = {}
    for file in folder.iterdir():
        content = file.read_bytes().partition(b"\n")[0]
        if content:
            specs_[file.name] = msgspec.json.decode(content, type=OwnerRecord)
    return specs_
