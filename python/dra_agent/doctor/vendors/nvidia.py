"""NVIDIA's driver: nouveau is in its place, or its modules are not complete."""

from __future__ import annotations

from dra_agent.doctor.vendor_driver import UnusableDriver, VendorDriver, VersionFile

DRIVER = VendorDriver(
    name="NVIDIA's driver",
    unusable=(
        UnusableDriver(
            "nouveau",
            "nouveau drives the GPU, which CUDA cannot use",
            "blacklist nouveau and install NVIDIA's driver",
        ),
    ),
    version=VersionFile("nvidia", "driver/nvidia/version", "reload the nvidia module"),
    link_command=("nvidia-ctk", "system", "create-dev-char-symlinks", "--create-all"),
    node_hints={"": "run `nvidia-modprobe -u -c 0` (also at boot), or start nvidia-persistenced"},
)
