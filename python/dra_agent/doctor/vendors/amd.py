"""AMD's driver, which is part of the kernel."""

from __future__ import annotations

from dra_agent.doctor.vendor_driver import VendorDriver

DRIVER = VendorDriver(name="the amdgpu driver", node_hints={"kfd": "load the amdgpu module (`modprobe amdgpu`)"})
