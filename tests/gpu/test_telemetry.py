"""The values of GPUs that telemetry reads, compared with nvidia-smi before and after. Nothing is changed."""

from __future__ import annotations

from typing import NamedTuple

from dra_agent.host import Host
from dra_agent.inventory.model import Inventory
from dra_agent.telemetry.model import DeviceSample, IncompleteError
from dra_agent.telemetry.sources.nvidia import make

from .conftest import Smi
from .journal import Journal
from .report import address

MIB = 1 << 20
NOT_AVAILABLE = "["
"""The begin of what nvidia-smi prints in place of a number: [N/A], [Not Supported]."""


class Value(NamedTuple):
    """A value of both."""

    field: str
    """Of nvidia-smi."""
    factor: float
    """From its unit to that of telemetry."""
    tolerance: float
    """In the unit of telemetry: the value changes between two readings."""


VALUES = {
    "gpu_utilization_ratio": Value("utilization.gpu", 0.01, 0.2),
    "memory_utilization_ratio": Value("utilization.memory", 0.01, 0.2),
    "memory_used_bytes": Value("memory.used", MIB, 64 * MIB),
    "memory_limit_bytes": Value("memory.total", MIB, MIB),
    "power_watts": Value("power.draw", 1.0, 30.0),
    "power_limit_watts": Value("power.limit", 1.0, 0.5),
    "temperature_celsius": Value("temperature.gpu", 1.0, 3.0),
    "sm_clock_hertz": Value("clocks.sm", 1e6, 300e6),
    "memory_clock_hertz": Value("clocks.mem", 1e6, 300e6),
}


def reported(smi: Smi) -> dict[str, dict[str, float]]:
    """Return the values of each GPU by its address, in the units of telemetry, without those it does not have."""
    rows = smi.query("pci.bus_id", *(value.field for value in VALUES.values()))
    return {
        address(row["pci.bus_id"]): {
            name: float(row[value.field]) * value.factor
            for name, value in VALUES.items()
            if not row[value.field].startswith(NOT_AVAILABLE)
        }
        for row in rows
    }


def test_values_are_those_of_nvidia_smi(host: Host, inventory: Inventory, smi: Smi, journal: Journal) -> None:
    whole = [one for one in inventory.devices if one.vendor == "nvidia" and "parent" not in one.identity]
    source, before = make(host), reported(smi)
    samples: dict[str, DeviceSample] = {}
    try:
        for device in whole:
            if source.can_read(device):
                try:
                    sample = source.read(device)
                except IncompleteError as error:
                    sample = error.sample
                assert sample is not None, f"{device.name} is not read"
                samples[device.pci_address] = sample
    finally:
        source.close()
    after = reported(smi)
    assert samples or not whole, "no GPU is read"
    rows, wrong = [], []
    for where, sample in samples.items():
        for name, value in VALUES.items():
            ours, both = getattr(sample, name), [found[where].get(name) for found in (before, after)]
            rows.append({"GPU": where, "value": name, "agent": ours, "nvidia-smi": both})
            known = [one for one in both if one is not None]
            if ours is None or not known:
                if (ours is None) != (not known):
                    wrong.append(rows[-1])
            elif not min(known) - value.tolerance <= ours <= max(known) + value.tolerance:
                wrong.append(rows[-1])
    journal.add("Telemetry", [{key: str(cell) for key, cell in row.items()} for row in rows])
    assert not wrong
