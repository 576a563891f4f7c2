"""A recording of Intel GPUs: profiles of virtual functions, and memory."""

from __future__ import annotations

from dra_agent.doctor.record.vendor import Tool, VendorRecording

RECORDING = VendorRecording(
    functions=("sriov_admin/*/profile/*", "tile*/physical_vram_size_bytes", "drm/card*/lmem_total_bytes"),
    tools=(Tool("xpu-smi", ("discovery", "-j"), "xpu-smi.json"),),
)
