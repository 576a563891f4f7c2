"""A recording of AMD GPUs: partition modes, memory and errors, and the topology of KFD."""

from __future__ import annotations

from contextlib import suppress

from dra_agent.doctor.record.identity import Replacements
from dra_agent.doctor.record.vendor import Tool, VendorRecording
from dra_agent.recording import Entry

_KFD = "class/kfd/kfd/topology"


def _learn(entry: Entry, replacements: Replacements) -> None:
    """Take numbers that identify GPUs: in /sys hexadecimal, in the topology of KFD decimal."""
    text = (entry.text or "").strip()
    if entry.path.endswith("/unique_id"):
        with suppress(ValueError):
            replacements.learn_number(int(text, 16))
    elif "/kfd/" in entry.path and entry.path.endswith("/properties"):
        for line in text.splitlines():
            key, _, value = line.partition(" ")
            if key in ("unique_id", "hive_id") and value.strip().isdecimal():
                replacements.learn_number(int(value))


RECORDING = VendorRecording(
    functions=(
        *("unique_id", "product_name", "mem_info_vram_total", "ras/*_err_count", "compute_partition_config/*"),
        *("current_compute_partition", "available_compute_partition"),
        *("current_memory_partition", "available_memory_partition", "compute_partition_config/*/*"),
    ),
    sysfs=(
        *(f"{_KFD}/{name}" for name in ("generation_id", "nodes/*/gpu_id", "nodes/*/name")),
        *(f"{_KFD}/nodes/*/{name}" for name in ("properties", "mem_banks/*/properties", "io_links/*/properties")),
    ),
    dev=("kfd",),
    tools=(
        Tool("amd-smi", ("static", "--json"), "amd-smi.json"),
        Tool("rocm-smi", ("--showallinfo", "--json"), "rocm-smi.json"),
    ),
    learn=_learn,
)
