"""Where NVIDIA's driver is taken from, and why."""

from __future__ import annotations

from collections.abc import Iterator

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, warning
from dra_agent.driver_root import OPERATOR_ROOT, SETTING, DriverMissingError, DriverRoot

_NVIDIA = "0x10de"


def check_nvidia_driver(context: CheckContext) -> Iterator[Finding]:
    """Report the driver root in use. A driver that is missing there is a problem of the hardware check."""
    topology, root = context.topology, context.host.driver_root
    if topology is None or not any(
        device.vendor_id == _NVIDIA and device.kind.value == "gpu" for device in topology.devices
    ):
        return
    if root is None:
        yield from _on_host(context)
        return
    try:
        library = root.library()
    except DriverMissingError as error:
        reported = context.inventory.problems if context.inventory is not None else ()
        if not any(found.where == error.where for found in reported):
            yield warning(error.message, error.where or str(root.path), error.hint or "")
        return
    if library is None:
        yield ok(f"the host's own files are used: no driver at {root.path} ({SETTING} is auto)", "NVIDIA driver")
        return
    reason = f"{SETTING} names it" if root.required else f"{SETTING} is auto, and a driver is there"
    nodes = "below it" if root.dev() is not None else "in the host's /dev"
    seen = "" if root.mount == root.path else f", which the agent sees at {root.mount}"
    yield ok(
        f"it is taken from {root.path}{seen} ({reason}): {root.on_host(str(library))}, device nodes {nodes}",
        "NVIDIA driver",
    )


def _on_host(context: CheckContext) -> Iterator[Finding]:
    """Find a driver container whose root the agent does not use."""
    other = DriverRoot(OPERATOR_ROOT, OPERATOR_ROOT)
    if context.simulated or other.identity() is None:
        yield ok("the host's own files are used", "NVIDIA driver")
        return
    yield warning(
        f"a driver container has its driver at {OPERATOR_ROOT}, and the agent looks for the host's own",
        "NVIDIA driver",
        f'set {SETTING} = "{OPERATOR_ROOT}", or "auto" (chart: nvidia.driverRoot)',
    )
