"""Checks of NVIDIA's container toolkit, which injects driver libraries into containers."""

from __future__ import annotations

from collections.abc import Iterator

from dra_agent.cdi.edits.nvidia_toolkit import KIND
from dra_agent.cdi.registry import load_registry
from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, warning
from dra_agent.doctor.program_version import Version, read_version, version_text

_NAME = "NVIDIA container toolkit"
_FIXED: Version = (1, 17, 8)
"""First version without CVE-2025-23266 and CVE-2025-23267: code and files of an image affect the host through the hooks
that `nvidia-ctk cdi generate` adds to every container. Records of both CVEs: cve.org."""


def check_nvidia_toolkit(context: CheckContext) -> Iterator[Finding]:
    """Look for nvidia-ctk and for NVIDIA's own spec; on a simulated host neither would know its GPUs."""
    inventory = context.inventory
    if context.simulated or inventory is None:
        return
    if not any(device.vendor == "nvidia" and device.family == "gpu" for device in inventory.devices):
        return
    program = context.commands.find("nvidia-ctk")
    published = any(name.startswith(f"{KIND}=") for name in load_registry(context.cdi_dirs).devices)
    if program is not None:
        yield _version(context, program)
    elif published:
        yield ok("driver libraries come from NVIDIA's CDI spec; the version of the toolkit is not known here", _NAME)
    else:
        yield warning(
            "neither nvidia-ctk nor NVIDIA's own CDI spec is here: containers get device nodes and no driver libraries",
            _NAME,
            "install nvidia-container-toolkit, then prepare the claims again",
        )


def _version(context: CheckContext, program: str) -> Finding:
    version = read_version(context.commands, program)
    if isinstance(version, Finding):
        return version
    text = version_text(version)
    if version < _FIXED:
        return warning(
            f"{text} has hooks through which a container image can run code on the host as root "
            "(CVE-2025-23266, CVE-2025-23267)",
            _NAME,
            f"install {version_text(_FIXED)} or newer, and generate NVIDIA's CDI spec again",
        )
    return ok(f"{text}: driver libraries can come into containers", _NAME)
