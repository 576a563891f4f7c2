"""NVIDIA's driver: its modules are not complete."""

from __future__ import annotations

from dra_agent.doctor.vendor_driver import VendorDriver, VersionFile

DRIVER = VendorDriver(
    name="NVIDIA's driver",
    version=VersionFile("nvidia", "driver/nvidia/version", "reload the nvidia module"),
    link_command=("nvidia-ctk", "system", "create-dev-char-symlinks", "--create-all"),
    node_hints={"": "run `nvidia-modprobe -u -c 0` (also at boot), or start nvidia-persistenced"},
)
