"""Recent lines of the journal and of the kernel log, as far as this user may read them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dra_agent.command import HostCommand
from dra_agent.doctor.bundle.content import MissingPartError
from dra_agent.errors import RetryableError
from dra_agent.path_search import find_program

UNIT = "dra-agent"
MAX_LINES = 5000
MAX_KERNEL_LINES = 20000
"""Of the kernel log, before lines about other devices are left out."""
TIMEOUT_S = 20.0
# Prefixes of messages: NVRM of NVIDIA's module, others are names of modules and of the kernel's subsystems.
_ABOUT_GPUS = re.compile(
    r"nvrm|nvidia|nouveau|amdgpu|amdkfd|\bkfd\b|\bi915\b|\bxe\b|\[drm|vfio|habanalabs|neuron|mlx5|iommu|dmar"
    r"|pcieport|\bAER\b|dra-agent",
    re.IGNORECASE,
)


def read_journal(unit: str = UNIT) -> str:
    """Return the last lines of a systemd unit. MissingPartError with the reason."""
    text = _run("journalctl", (f"--unit={unit}", f"--lines={MAX_LINES}", "--output=short-iso", *_QUIET))
    if not text.strip():
        raise MissingPartError(f"the journal has no lines of the unit {unit} that this user may read")
    return text


def read_kernel_log() -> str:
    """Return the lines of the kernel log about GPUs and PCI devices. MissingPartError with the reason."""
    try:
        text = _run("dmesg", ())
    except MissingPartError as error:
        try:
            text = _run("journalctl", ("--dmesg", f"--lines={MAX_KERNEL_LINES}", "--output=short-monotonic", *_QUIET))
        except MissingPartError as second:
            raise MissingPartError(f"{error}; {second}") from None
        if not text.strip():
            raise
    lines = [line for line in text.splitlines()[-MAX_KERNEL_LINES:] if _ABOUT_GPUS.search(line)]
    return "".join(f"{line}\n" for line in lines)


_QUIET = ("--quiet", "--no-pager")


def _run(name: str, arguments: Sequence[str]) -> str:
    path = find_program(name, system=True)
    if path is None:
        raise MissingPartError(f"{name} is not installed")
    try:
        done = HostCommand(path, TIMEOUT_S, environment={"LC_ALL": "C"}).run(arguments)
    except RetryableError as error:
        raise MissingPartError(f"{name}: {error.message}") from None
    if done.status != 0:
        raise MissingPartError(f"{name}: exit code {done.status}: {done.last_line}")
    return done.output.decode(errors="replace")
