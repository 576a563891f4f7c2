"""What the agent concludes about a host, in a form that does not depend on where the host's files are."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.topology import scan
from eventually import DEADLINE_S

PARTITIONED = InventorySettings(
    nvml_timeout=DEADLINE_S,
    partition=tuple(PartitionRule(when="true", mode=mode) for mode in ("mig", "amd", "sriov")),
)
"""Everything that can be offered in partitions is."""

_IDENTITY = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?:[0-9a-f]{2}:){5,19}[0-9a-f]{2}|(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])"
    r"|(?<![0-9])[0-9]{17,20}(?![0-9])"
)


def conclusions(host: Host, settings: InventorySettings | None = None) -> dict[str, Any]:
    """Return topology, devices, counters and problems."""
    topology = scan(host)
    inventory: Inventory = collect(host, topology, settings or InventorySettings(nvml_timeout=DEADLINE_S))
    parts = {
        "topology": topology,
        "devices": inventory.devices,
        "counters": inventory.counter_sets,
        "problems": [str(problem) for problem in inventory.problems],
    }
    text = msgspec.json.encode(parts, enc_hook=_plain, order="sorted").decode()
    decoded: dict[str, Any] = msgspec.json.decode(text.replace(str(host.sysfs.parent), "HOST"))
    return decoded


def anonymous(found: dict[str, Any]) -> dict[str, Any]:
    """Return the same with each identity replaced by the number of its first occurrence."""
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return f"#{numbers.setdefault(match[0], len(numbers))}"

    text = _IDENTITY.sub(number, msgspec.json.encode(found).decode())
    decoded: dict[str, Any] = msgspec.json.decode(text)
    return decoded


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, set | frozenset) else str(value)
