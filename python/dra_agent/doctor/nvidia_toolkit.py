"""Whether the libraries of NVIDIA's driver can come into containers: device nodes alone are enough for few images."""

from __future__ import annotations

from collections.abc import Iterator

from dra_agent.cdi.edits.toolkit_spec import KIND
from dra_agent.cdi.registry import load_registry
from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, warning


def check(examination: CheckContext) -> Iterator[Finding]:
    """Look for nvidia-ctk and for NVIDIA's own spec; on a simulated host neither would know its GPUs."""
    inventory = examination.inventory
    if examination.simulated or inventory is None:
        return
    if not any(device.vendor == "nvidia" and device.family == "gpu" for device in inventory.devices):
        return
    published = any(name.startswith(f"{KIND}=") for name in load_registry(examination.cdi_dirs).devices)
    if published or examination.commands.find("nvidia-ctk") is not None:
        yield ok("driver libraries can come into containers", "NVIDIA container toolkit")
    else:
        yield warning(
            "neither nvidia-ctk nor NVIDIA's own CDI spec is here: containers get device nodes and no driver libraries",
            "NVIDIA container toolkit",
            "install nvidia-container-toolkit, then prepare the claims again",
        )
