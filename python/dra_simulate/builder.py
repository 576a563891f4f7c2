"""Builds the files of a machine under a root, and saves later changes in `<root>/simulated.json`.

Building over an existing tree repairs it and keeps run-time state: an unplugged device stays unplugged, a written
attribute keeps its value, faults of the NVML library stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from dra_agent.errors import PermanentError
from dra_agent.host import Host
from dra_agent.recording import named_recording
from dra_simulate import (
    host_network,
    kfd,
    mps,
    nvidia_smi,
    nvml,
    nvml_install,
    pci,
    proc_net,
    system,
    tree,
)
from dra_simulate.machine import Function, Machine
from dra_simulate.profiles import load_profile
from dra_simulate.recording import build_recording
from dra_simulate.roles import drm, nvidia
from dra_simulate.roles.amd import AmdGpu
from dra_simulate.roles.vendor import VfioDevice
from dra_simulate.tree import Tree

_FOLDERS = ("sys", "dev", "proc")


class KernelFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The effect of writing an attribute of a device."""

    address: str
    attribute: str
    """The file's name: "unbind", "drivers_probe", "driver_override", "current_compute_partition"."""
    errno: int | None = None
    """The error of the write; None: it hangs, for `delay_ms` or indefinitely."""
    delay_ms: int = 0


class SimulatedState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The saved state of a simulated host: its machine, and later changes."""

    profile: str
    unplugged: tuple[str, ...] = ()
    """Addresses."""
    drivers: dict[str, str] = {}
    """By address, of every function that was bound to another driver: its current driver, "" for none."""
    modes: dict[str, str] = {}
    """By address, of every AMD GPU with a changed compute partition mode: its current mode."""
    kernel_faults: tuple[KernelFault, ...] = ()
    kfd: kfd.KfdState = kfd.KfdState()
    access: nvml.Access = nvml.Access()
    """The permissions of the agent with NVIDIA's driver."""
    driver_unloaded: bool = False
    """True if NVIDIA's kernel modules are not loaded."""


def build(profile: str, root: Path) -> Host:
    """Make `root` a simulated host of that profile, or of the recording at that path; the result is its roots.

    Raises UsageError for an unknown profile, PermanentError where `root` holds something else.
    """
    recorded = named_recording(profile)
    return build_recording(recorded, root) if recorded is not None else build_machine(load_profile(profile), root)


def build_machine(machine: Machine, root: Path) -> Host:
    """Make `root` a simulated host of that machine; raises PermanentError if `root` holds something else."""
    root = root.absolute()
    tool = root / nvidia_smi.TOOL if machine.nvidia is not None else None
    host = Host(root / "sys", root / "dev", root / "proc", root / "lib" / nvml.LIBRARY, nvidia_smi=tool)
    if load_state(root) is None and nvml.is_foreign(root):
        raise _not_a_host(root)
    # Another process may build the same host, or an agent on it may change it, until the lock is held.
    with nvml.locked(root / "lib"):
        remembered = load_state(root)
        if remembered is None and any(path.name != "lib" for path in root.iterdir()):
            raise _not_a_host(root)
        if remembered is not None and remembered.profile != machine.name:
            raise PermanentError(
                f"holds a simulated {remembered.profile!r}, not {machine.name!r}",
                where=str(root),
                hint=f"remove it (rm -r {root}) or name another directory",
            )
        apply(machine, remembered or SimulatedState(machine.name), root, fresh=remembered is None)
        if tool is not None:
            nvidia_smi.install(root)
            mps.install(root / "lib")
    return host


def apply(
    machine: Machine,
    simulated: SimulatedState,
    root: Path,
    *,
    fresh: bool = False,
    gone: Callable[[], None] = lambda: None,
) -> None:
    """Update tree, NVML state and saved state of the host at `root` to `simulated`.

    `gone` is called after unplugged devices were removed from the tree, and before NVML loses them. The saved state is
    written first: the next build completes an interrupted one. `fresh`: there is no tree yet.
    """
    present = current_machine(machine, simulated)
    before, simulated = simulated.kfd, msgspec.structs.replace(simulated, kfd=kfd.arrivals(present, simulated.kfd))
    save_state(root, simulated)
    now = plan(present, simulated.kfd, simulated.access)
    # Drivers stay loaded when they have no device.
    keep = {pci.DRIVERS, *(f"{pci.DRIVERS}/{one.driver}" for one in machine.functions() if one.driver)}
    for folder in keep:
        now.directory(folder)
    if not fresh:
        # The two plans of an unchanged machine differ in nodes of the compute topology, which stay.
        original = now if (present, simulated.access) == (machine, nvml.Access()) else plan(machine)
        tree.remove((path for path in _ever(machine, original, simulated) if path not in now.entries), root, keep)
    gone()
    # In this order, so that NVML knows every GPU in the tree.
    nvml_install.install(machine, present, root / "lib", simulated.access)
    kfd.withdraw(now, root, kfd.departures(before, simulated.kfd))
    tree.write(now, root, fresh=fresh)


def plan(
    machine: Machine,
    topology: kfd.KfdState | None = None,
    access: nvml.Access = nvml.Access(),  # noqa: B008 - immutable
) -> Tree:
    """Return the whole tree of such a host, as processes with that access see it.

    `topology`: None where its GPUs have never changed.
    """
    planned = Tree()
    for folder in _FOLDERS:
        planned.directory(folder)
    for part in (system, pci, drm, nvidia, host_network, proc_net):
        part.plan(machine, planned)
    for role in machine.platform:
        role.plan(machine, planned)
    kfd.plan(machine, topology or kfd.arrivals(machine, kfd.KfdState()), planned)
    nvidia.plan_capabilities(machine, access, planned)
    return planned


def save_state(root: Path, simulated: SimulatedState) -> None:
    """Save the state of the host."""
    tree.replace_file(root / "simulated.json", msgspec.json.format(msgspec.json.encode(simulated), indent=2))


def current_machine(machine: Machine, simulated: SimulatedState) -> Machine:
    """The current machine: without unplugged devices, with the drivers and modes that were set."""
    numbers = {function.address: number for number, function in enumerate(machine.functions())}

    def now(function: Function) -> Function:
        driver = simulated.drivers.get(function.address, function.driver) or None
        roles = function.roles
        if driver != function.driver:
            roles = (VfioDevice(numbers[function.address]),) if driver == pci.VFIO else ()
        mode = simulated.modes.get(function.address)
        roles = tuple(replace(role, mode=mode) if isinstance(role, AmdGpu) and mode else role for role in roles)
        return replace(function, driver=driver, roles=roles)

    present = machine.without(simulated.unplugged).changed(now)
    return replace(present, nvidia=None) if simulated.driver_unloaded else present


def _ever(machine: Machine, original: Tree, simulated: SimulatedState) -> dict[str, None]:
    """Return every path that may exist below the root, also after an interrupted change."""
    paths = dict.fromkeys(original.entries)
    if simulated.drivers:
        bound = dict.fromkeys((one for one in simulated.drivers if one in machine.iommu_groups), pci.VFIO)
        paths |= dict.fromkeys(plan(current_machine(machine, SimulatedState(machine.name, drivers=bound))).entries)
    # Nodes of the compute topology are removed by `kfd.withdraw`, in the order of the kernel.
    return {path: None for path in paths if not kfd.is_node(path)}


def _not_a_host(root: Path) -> PermanentError:
    return PermanentError(
        "not empty, and not a simulated host", where=str(root), hint="name an empty or a new directory"
    )


def load_state(root: Path) -> SimulatedState | None:
    """Return the state of the simulated host at `root`; None without one. Raises PermanentError if it is invalid."""
    path = root / "simulated.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=SimulatedState)  # noqa: TID251 - a file of the simulated host
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise PermanentError(
            f"not the state of a simulated host: {error}",
            where=str(path),
            hint="remove the directory and build it again",
        ) from None
