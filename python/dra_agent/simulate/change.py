"""Changes a simulated host while an agent runs on it: pulls devices out, raises errors, makes library calls hang.

Each change is made under one lock, and every file is replaced by rename, so whoever reads meanwhile sees the host
before or after it, never half a file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from dra_agent.errors import UsageError
from dra_agent.simulate import builder, nvml
from dra_agent.simulate.machine import Function, Machine
from dra_agent.simulate.profiles import load
from dra_agent.simulate.roles.network import Interface, RdmaDevice
from dra_agent.simulate.roles.nvidia import NvidiaGpu

XID_EVENT = 0x8
"""nvmlEventTypeXidCriticalError."""
FALLEN_OFF_THE_BUS = 79
"""The XID that NVIDIA's driver logs for a GPU that no longer answers."""
_BRIDGE = 0x0604
_KEPT_EVENTS = 256


def unplug(root: Path, device: str, machine: Machine | None = None) -> str:
    """Take a device, and all below it, out of the host; gives its PCI address.

    GPUs are lost to NVML, with the XID that goes with it. `device` is a PCI address, a GPU's UUID or minor number, or
    the name of an interface or RDMA device; `machine` is needed where it is no profile's.
    """
    machine, simulated = _recall(root, machine)
    address = find(machine, device).address
    if address in simulated.unplugged:
        raise UsageError(f"{address} is already unplugged", where=str(root))
    with nvml.locked(root / "lib"):
        gone = {function.address for function in machine.functions()}
        gone -= {function.address for function in machine.without({address}).functions()}
        for function, gpu in machine.with_role(NvidiaGpu):
            if function.address in gone:
                _add_event(root, gpu.uuid, FALLEN_OFF_THE_BUS)
        builder.apply(machine, builder.Simulated(simulated.profile, (*simulated.unplugged, address)), root)
    return address


def replug(root: Path, device: str, machine: Machine | None = None) -> str:
    """Put an unplugged device back; gives its PCI address."""
    machine, simulated = _recall(root, machine)
    address = find(machine, device).address
    if address not in simulated.unplugged:
        raise UsageError(f"{address} is not unplugged", where=str(root), todo=_unplugged(simulated))
    rest = tuple(other for other in simulated.unplugged if other != address)
    with nvml.locked(root / "lib"):
        builder.apply(machine, builder.Simulated(simulated.profile, rest), root)
    return address


def xid(root: Path, device: str, number: int, machine: Machine | None = None) -> str:
    """Raise an XID on a GPU; gives its UUID."""
    machine, _ = _recall(root, machine)
    uuid = _gpu(machine, device)
    with nvml.locked(root / "lib"):
        _add_event(root, uuid, number)
    return uuid


def hang(root: Path, function: str | None, device: str | None = None, machine: Machine | None = None) -> None:
    """Make calls of a function (None: of all) about a GPU (None: all) hang until `clear`."""
    _add_fault(root, machine, function, device, hang=True)


def delay(
    root: Path, function: str | None, milliseconds: int, device: str | None = None, machine: Machine | None = None
) -> None:
    """Make calls take that much longer."""
    _add_fault(root, machine, function, device, delay_ms=milliseconds)


def fail(
    root: Path, function: str | None, code: int, device: str | None = None, machine: Machine | None = None
) -> None:
    """Make calls fail with one of NVML's error numbers."""
    _add_fault(root, machine, function, device, code=code)


def clear(root: Path) -> int:
    """Take all faults away; gives how many there were. What hangs, comes back."""
    _recall(root, None, needs_machine=False)
    cleared = 0

    def without_faults(state: nvml.State) -> nvml.State:
        nonlocal cleared
        cleared = len(state.faults)
        return msgspec.structs.replace(state, faults=())

    with nvml.locked(root / "lib"):
        _edit(root, without_faults)
    return cleared


def find(machine: Machine, device: str) -> Function:
    """The function that somebody means; UsageError names those that there are."""
    wanted = device.lower()
    for function in machine.functions():
        if wanted in (function.address, function.address.removeprefix("0000:")):
            return function
        if any(wanted in _names(role) for role in function.roles):
            return function
    known = [function.address for function in machine.functions() if function.id.class_code >> 8 != _BRIDGE]
    raise UsageError(f"no device {device!r} in {machine.name}; known: {', '.join(known)}")


def _names(role: object) -> tuple[str, ...]:
    match role:
        case NvidiaGpu(minor=minor, uuid=uuid):
            return (uuid.lower(), str(minor))
        case Interface(name=name) | RdmaDevice(name=name):
            return (name.lower(),)
    return ()


def _gpu(machine: Machine, device: str) -> str:
    function = find(machine, device)
    for role in function.roles:
        if isinstance(role, NvidiaGpu):
            return role.uuid
    gpus = ", ".join(other.address for other, _ in machine.with_role(NvidiaGpu)) or "none"
    raise UsageError(f"{function.address} is no NVIDIA GPU; those of {machine.name}: {gpus}")


def _recall(root: Path, machine: Machine | None, *, needs_machine: bool = True) -> tuple[Machine, builder.Simulated]:
    simulated = builder.recall(root)
    if simulated is None:
        raise UsageError(
            "not a simulated host", where=str(root), todo=f"make one with `dra-agent simulate build PROFILE {root}`"
        )
    if machine is None and needs_machine:
        machine = load(simulated.profile)
    return machine or Machine(simulated.profile, "", (), ()), simulated


def _unplugged(simulated: builder.Simulated) -> str:
    return f"unplugged are: {', '.join(simulated.unplugged) or 'none'}"


def _add_event(root: Path, uuid: str, number: int) -> None:
    def with_event(state: nvml.State) -> nvml.State:
        sequence = max((event.sequence for event in state.events), default=0) + 1
        events = (*state.events, nvml.Event(sequence, uuid, XID_EVENT, number))
        return msgspec.structs.replace(state, events=events[-_KEPT_EVENTS:])

    _edit(root, with_event)


def _add_fault(
    root: Path,
    machine: Machine | None,
    function: str | None,
    device: str | None,
    *,
    delay_ms: int = 0,
    hang: bool = False,
    code: int | None = None,
) -> None:
    machine, _ = _recall(root, machine)
    if function is not None:
        _check_function(root, function)
    fault = nvml.Fault(function, device and _gpu(machine, device), delay_ms, hang, code)
    with nvml.locked(root / "lib"):
        _edit(root, lambda state: msgspec.structs.replace(state, faults=(*state.faults, fault)))


def _check_function(root: Path, function: str) -> None:
    """Refuse a name that the library does not have: such a fault would never happen."""
    library = (root / "lib" / nvml.LIBRARY).read_bytes()
    # The dynamic string table holds every exported name, each closed with a NUL.
    stem = b"\0" + function.encode()
    if not function.startswith("nvml") or not any(stem + end in library for end in (b"\0", b"_v2\0", b"_v3\0")):
        raise UsageError(
            f"the simulated NVML has no function {function!r}", todo="name one as NVML does: nvmlDeviceGetMemoryInfo"
        )


def _edit(root: Path, change: Callable[[nvml.State], nvml.State]) -> None:
    nvml.write(root / "lib", change(nvml.read(root / "lib")))
