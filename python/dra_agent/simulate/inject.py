"""Changes a simulated host while an agent runs on it: unplugs devices, raises errors, makes library calls hang.

Each change is made under one lock, and every file is replaced by rename, so concurrent readers see the host before or
after it, never a partial file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from dra_agent.errors import UsageError
from dra_agent.simulate import builder, mig, nvml
from dra_agent.simulate.machine import Function, Machine
from dra_agent.simulate.profiles import load_profile
from dra_agent.simulate.roles.network import Interface, RdmaDevice
from dra_agent.simulate.roles.nvidia import NvidiaGpu
from dra_agent.simulate.tree import replace_file

When = Literal["before", "after"]
"""A call has its effect."""
WRITTEN = frozenset({"driver_override", "unbind", "drivers_probe", "bind", "current_compute_partition"})
"""Attributes whose writes have an effect (see `kernel`)."""
XID_EVENT = 0x8
"""nvmlEventTypeXidCriticalError."""
FALLEN_OFF_THE_BUS = 79
"""The XID that NVIDIA's driver logs for a GPU that stopped responding."""
_BRIDGE = 0x0604
_KEPT_EVENTS = 256


def unplug(root: Path, device: str, machine: Machine | None = None) -> str:
    """Remove a device, and all devices below it, from the host; return its PCI address.

    NVML loses GPUs, with the XID for that. `device` is a PCI address, a GPU's UUID or minor number, or the name of an
    interface or RDMA device; `machine` is needed if it is not that of a profile.

    Raises UsageError for an unknown device, or if it is unplugged already.
    """
    with _changing(root, machine) as (machine, simulated):
        address = find(machine, device).address
        if address in simulated.unplugged:
            raise UsageError(f"{address} is already unplugged", where=str(root))
        gone = {function.address for function in machine.functions()}
        gone -= {function.address for function in machine.without({address}).functions()}
        gpus = [(gpu.uuid, gpu.minor) for function, gpu in machine.with_role(NvidiaGpu) if function.address in gone]

        def notice() -> None:
            # The driver notices it when it accesses the removed device.
            for uuid, minor in gpus:
                _add_event(root, uuid, FALLEN_OFF_THE_BUS)
                mig.reset(root, uuid, minor)

        drivers = {other: driver for other, driver in simulated.drivers.items() if other not in gone}
        now = msgspec.structs.replace(simulated, unplugged=(*simulated.unplugged, address), drivers=drivers)
        builder.apply(machine, now, root, gone=notice)
    return address


def replug(root: Path, device: str, machine: Machine | None = None) -> str:
    """Plug an unplugged device in again; returns its PCI address. Raises UsageError if it is not unplugged."""
    with _changing(root, machine) as (machine, simulated):
        address = find(machine, device).address
        if address not in simulated.unplugged:
            raise UsageError(f"{address} is not unplugged", where=str(root), hint=_unplugged(simulated))
        rest = tuple(other for other in simulated.unplugged if other != address)
        builder.apply(machine, msgspec.structs.replace(simulated, unplugged=rest), root)
    return address


def reset(root: Path, device: str, machine: Machine | None = None) -> str:
    """Reset a GPU: its MIG instances are removed, and a pending MIG mode takes effect; return its UUID."""
    machine, _ = _recall(root, machine)
    function = find(machine, device)
    uuid = _gpu(machine, device)
    minor = next(role.minor for role in function.roles if isinstance(role, NvidiaGpu))
    mig.reset(root, uuid, minor)
    _set_condition(root, device, machine, recovery_action=0)
    return uuid


RECOVERY_ACTIONS = {
    "none": 0,
    "reset": 1,
    "reboot": 2,
    "drain-p2p": 3,
    "drain-and-reset": 4,
    "recover-imex": 5,
    "bus-reset": 6,
    "system-reboot": 7,
}
"""nvmlDeviceGpuRecoveryAction_t of driver 615."""
RECOVERY_EVENT = 0x8000
"""nvmlEventTypeGpuRecoveryAction."""
RECOVERY_CHANGED = 154
"""The XID that the driver logs when the requested recovery changes."""


def recovery(root: Path, device: str, action: int, machine: Machine | None = None) -> str:
    """Let the driver request a recovery of a GPU, with its XID and event; return the GPU's UUID."""
    uuid = _set_condition(root, device, machine, recovery_action=action)
    with nvml.locked(root / "lib"):
        _add_event(root, uuid, RECOVERY_CHANGED)
        _add_event(root, uuid, 0, kind=RECOVERY_EVENT)
    return uuid


def event(root: Path, device: str, kind: int, machine: Machine | None = None) -> str:
    """Raise an event of a GPU by its bit in nvmlEventType; return the GPU's UUID."""
    machine, _ = _recall(root, machine)
    uuid = _gpu(machine, device)
    with nvml.locked(root / "lib"):
        _add_event(root, uuid, 0, kind=kind)
    return uuid


def set_access(root: Path, access: nvml.Access, machine: Machine | None = None) -> None:
    """Set the permissions of all processes on the host with NVIDIA's driver (see `container`)."""
    with _changing(root, machine) as (machine, simulated):
        builder.apply(machine, msgspec.structs.replace(simulated, access=access), root)


def xid(
    root: Path,
    device: str,
    number: int,
    machine: Machine | None = None,
    *,
    gpu_instance: int = nvml.NO_INSTANCE,
    compute_instance: int = nvml.NO_INSTANCE,
) -> str:
    """Raise an XID on a GPU, or on a MIG instance of it; returns the GPU's UUID."""
    machine, _ = _recall(root, machine)
    uuid = _gpu(machine, device)
    with nvml.locked(root / "lib"):
        _add_event(root, uuid, number, gpu_instance, compute_instance)
    return uuid


FABRIC_STATES = {"not-started": 1, "in-progress": 2, "completed": 3}
"""NVML_GPU_FABRIC_STATE_*."""
FABRIC_FAILURES = {
    "bandwidth": 1 << 0,
    "route-recovery": 1 << 2,
    "route-unhealthy": 1 << 4,
    "access-timeout": 1 << 6,
    "system-guid": 2 << 8,
    "chassis": 3 << 8,
    "no-partition": 4 << 8,
    "nvlinks": 5 << 8,
    "firmware": 6 << 8,
    "location": 7 << 8,
    "gpu-state": 8 << 8,
    "global-manager": 2 << 14,
}
"""Bits of NVML_GPU_FABRIC_HEALTH_MASK_*."""
_BANDWIDTH_FULL, _HEALTHY, _UNHEALTHY = 2, 1, 2


def fabric(
    root: Path,
    device: str,
    state: str,
    machine: Machine | None = None,
    *,
    status: int = 0,
    failures: Collection[str] = (),
) -> str:
    """Set the registration of a GPU with its NVLink fabric; return the GPU's UUID.

    `state` is a key of FABRIC_STATES, `status` nvmlReturn_t, `failures` keys of FABRIC_FAILURES.
    """
    mask = 0 if "bandwidth" in failures else _BANDWIDTH_FULL
    for failure in failures:
        mask |= FABRIC_FAILURES[failure]
    condition = nvml.FabricCondition(FABRIC_STATES[state], status, mask, _UNHEALTHY if failures else _HEALTHY)
    return _set_condition(root, device, machine, fabric=condition)


def nvlinks(root: Path, device: str, down: Collection[int], machine: Machine | None = None) -> str:
    """Set which NVLinks of a GPU are down, by their numbers; all others are up. Return the GPU's UUID."""
    return _set_condition(root, device, machine, nvlinks_down=tuple(sorted(down)))


def load(root: Path, device: str, machine: Machine | None = None, **values: object) -> str:
    """Set values that telemetry reads of a GPU, by the names of `nvml.Condition`; return the GPU's UUID."""
    return _set_condition(root, device, machine, **values)


def play(
    root: Path,
    device: str,
    steps: tuple[nvml.LoadStep, ...],
    machine: Machine | None = None,
    *,
    gpu_instance: int = nvml.NO_INSTANCE,
) -> str:
    """Let a GPU, or a MIG instance of it, play a schedule from now on; return the GPU's UUID.

    It replaces the schedule that is played there, whose energy stays counted; without steps, none is played.
    """
    machine, _ = _recall(root, machine)
    uuid = _gpu(machine, device)
    now_ms = round(time.time() * 1000)
    load = nvml.Load(uuid, now_ms, steps, gpu_instance)

    def changed(state: nvml.NvmlState) -> nvml.NvmlState:
        condition = state.conditions.get(uuid, nvml.Condition())
        others = []
        for one in state.loads:
            if (one.device, one.gpu_instance) != (uuid, gpu_instance):
                others.append(one)
            elif gpu_instance == nvml.NO_INSTANCE:
                energy = condition.energy_millijoules + _energy_millijoules(one, now_ms)
                condition = msgspec.structs.replace(condition, energy_millijoules=energy)
        loads = (*others, load) if steps else tuple(others)
        return msgspec.structs.replace(state, loads=loads, conditions={**state.conditions, uuid: condition})

    with nvml.locked(root / "lib"):
        _edit(root, changed)
    return uuid


def skip(root: Path, seconds: float) -> None:
    """Let that much time pass in all schedules that are played."""

    def changed(state: nvml.NvmlState) -> nvml.NvmlState:
        earlier = [
            msgspec.structs.replace(one, started_at_ms=one.started_at_ms - round(seconds * 1000)) for one in state.loads
        ]
        return msgspec.structs.replace(state, loads=tuple(earlier))

    with nvml.locked(root / "lib"):
        _edit(root, changed)


def _energy_millijoules(load: nvml.Load, now_ms: int) -> int:
    elapsed_ms = now_ms - load.started_at_ms
    ends_ms = [*(step.at_ms for step in load.steps[1:]), elapsed_ms]
    used = (
        step.power_milliwatts * max(0, min(end_ms, elapsed_ms) - step.at_ms)
        for step, end_ms in zip(load.steps, ends_ms, strict=True)
    )
    return sum(used) // 1000


def traffic(root: Path, interface: str, *, received_bytes: int, sent_bytes: int, received_errors: int = 0) -> None:
    """Set the counters of a network interface, as its driver counts them."""
    folder = root / "sys/class/net" / interface / "statistics"
    counters = {"rx_bytes": received_bytes, "tx_bytes": sent_bytes, "rx_errors": received_errors}
    for name, value in counters.items():
        replace_file(folder / name, f"{value}\n".encode())


def latency(
    root: Path, *, init_ms_per_gpu: int = 0, gpu_start_ms: int = 0, calls_ms: Mapping[str, int] | None = None
) -> None:
    """Set the durations of calls; the default is 0.

    With `gpu_start_ms`, persistence mode is off on every GPU, so that each process that opens one initializes it.
    """
    _recall(root, None, needs_machine=False)
    for function in calls_ms or {}:
        _check_function(root, function)
    times = nvml.Latency(init_ms_per_gpu, gpu_start_ms, dict(calls_ms or {}))

    def changed(state: nvml.NvmlState) -> nvml.NvmlState:
        conditions = {
            gpu.uuid: msgspec.structs.replace(
                state.conditions.get(gpu.uuid, nvml.Condition()), persistence_mode=gpu_start_ms == 0
            )
            for gpu in state.devices
        }
        return msgspec.structs.replace(state, latency=times, conditions={**state.conditions, **conditions})

    with nvml.locked(root / "lib"):
        _edit(root, changed)


def start_process(
    root: Path,
    device: str,
    pid: int,
    memory_bytes: int,
    machine: Machine | None = None,
    *,
    gpu_instance: int = nvml.NO_INSTANCE,
    compute_instance: int = nvml.NO_INSTANCE,
    cgroup: str | None = None,
    utilization: tuple[int, int] = (0, 0),
    sampled_at_us: int | None = None,
) -> str:
    """Start a compute process on a GPU, or on a MIG instance of it; returns the GPU's UUID.

    One with this PID on the same GPU is replaced. `utilization`: of the GPU and of its memory, in percent.
    """
    machine, _ = _recall(root, machine)
    uuid = _gpu(machine, device)
    process = nvml.Process(uuid, pid, memory_bytes, gpu_instance, compute_instance, cgroup, utilization, sampled_at_us)
    with nvml.locked(root / "lib"):
        _edit(root, lambda state: msgspec.structs.replace(state, processes=(*_others(state, process), process)))
    return uuid


def _others(state: nvml.NvmlState, process: nvml.Process) -> Iterator[nvml.Process]:
    """Return the processes that the new one does not replace."""
    return (one for one in state.processes if _identity(one) != _identity(process))


def _identity(process: nvml.Process) -> tuple[str, int, int, int]:
    return process.device, process.pid, process.gpu_instance, process.compute_instance


def end_process(root: Path, pid: int) -> int:
    """End a compute process on every GPU; returns the number of GPUs that it used."""
    _recall(root, None, needs_machine=False)
    with nvml.locked(root / "lib"):
        old = nvml.read(root / "lib")
        rest = tuple(process for process in old.processes if process.pid != pid)
        nvml.write(root / "lib", msgspec.structs.replace(old, processes=rest))
    return len(old.processes) - len(rest)


def hang(
    root: Path,
    function: str | None,
    device: str | None = None,
    machine: Machine | None = None,
    *,
    when: When = "before",
) -> None:
    """Make calls of a function (None: of all) about a GPU (None: all) hang until `clear`."""
    _add_fault(root, machine, device, nvml.Fault(function, hang=True, when=when))


def delay(
    root: Path,
    function: str | None,
    milliseconds: int,
    device: str | None = None,
    machine: Machine | None = None,
    *,
    times: int | None = None,
) -> None:
    """Make calls take that much longer; so many of them (None: all)."""
    _add_fault(root, machine, device, nvml.Fault(function, delay_ms=milliseconds, times=times))


def fail(
    root: Path,
    function: str | None,
    code: int,
    device: str | None = None,
    machine: Machine | None = None,
    *,
    milliseconds: int = 0,
    times: int | None = None,
    when: When = "before",
) -> None:
    """Make calls fail with one of NVML's error numbers, after that time, so many of them (None: all).

    A call that fails "after" has had its effect.
    """
    fault = nvml.Fault(function, delay_ms=milliseconds, code=code, times=times, when=when)
    _add_fault(root, machine, device, fault)


def kill(
    root: Path,
    function: str | None,
    device: str | None = None,
    machine: Machine | None = None,
    *,
    process: Literal["library", "agent"] = "library",
    times: int = 1,
    when: When = "before",
) -> None:
    """End the process that makes a call, before the call has its effect or after, as `kill -9` does.

    The agent runs the library in a worker process: "library" means the worker, "agent" also its parent.
    """
    _add_fault(root, machine, device, nvml.Fault(function, kill=process, times=times, when=when))


def clear(root: Path) -> int:
    """Remove all faults; return their number. Hanging calls return."""
    with _changing(root, None, needs_machine=False) as (_, simulated):
        state = nvml.read(root / "lib")
        nvml.write(root / "lib", msgspec.structs.replace(state, faults=()))
        builder.save_state(root, msgspec.structs.replace(simulated, kernel_faults=()))
    return len(state.faults) + len(simulated.kernel_faults)


def answer_write(
    root: Path,
    device: str,
    attribute: str,
    *,
    errno: int | None = None,
    milliseconds: int = 0,
    machine: Machine | None = None,
) -> str:
    """Make writes of an attribute of a device fail, take longer, or (neither given) hang until `clear`.

    Raises UsageError for an unknown device, or an attribute that is never written.
    """
    with _changing(root, machine) as (machine, simulated):
        address = find(machine, device).address
        if attribute not in WRITTEN:
            raise UsageError(f"no attribute {attribute!r} is written", hint=f"name one of {', '.join(sorted(WRITTEN))}")
        fault = builder.KernelFault(address, attribute, errno, milliseconds)
        faults = (*simulated.kernel_faults, fault)
        builder.save_state(root, msgspec.structs.replace(simulated, kernel_faults=faults))
    return address


def find(machine: Machine, device: str) -> Function:
    """Return the function for a name; UsageError lists the existing ones."""
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
    raise UsageError(f"{function.address} is not an NVIDIA GPU; the GPUs of {machine.name}: {gpus}")


@contextmanager
def _changing(
    root: Path, machine: Machine | None, *, needs_machine: bool = True
) -> Iterator[tuple[Machine, builder.SimulatedState]]:
    """Load the host under the lock of its writers, because the agent binds drivers concurrently."""
    _recall(root, machine, needs_machine=needs_machine)  # before a lock is made where no host is
    with nvml.locked(root / "lib"):
        yield _recall(root, machine, needs_machine=needs_machine)


def _recall(
    root: Path, machine: Machine | None, *, needs_machine: bool = True
) -> tuple[Machine, builder.SimulatedState]:
    simulated = builder.load_state(root)
    if simulated is None:
        raise UsageError(
            "not a simulated host", where=str(root), hint=f"make one with `dra-agent simulate build PROFILE {root}`"
        )
    if machine is None and needs_machine:
        machine = load_profile(simulated.profile)
    return machine or Machine(simulated.profile, "", (), ()), simulated


def _unplugged(simulated: builder.SimulatedState) -> str:
    return f"unplugged are: {', '.join(simulated.unplugged) or 'none'}"


def _set_condition(root: Path, device: str, machine: Machine | None, **changes: object) -> str:
    machine, _ = _recall(root, machine)
    uuid = _gpu(machine, device)

    def changed(state: nvml.NvmlState) -> nvml.NvmlState:
        condition = msgspec.structs.replace(state.conditions.get(uuid, nvml.Condition()), **changes)
        return msgspec.structs.replace(state, conditions={**state.conditions, uuid: condition})

    with nvml.locked(root / "lib"):
        _edit(root, changed)
    return uuid


def _add_event(
    root: Path,
    uuid: str,
    number: int,
    gpu_instance: int = nvml.NO_INSTANCE,
    compute_instance: int = nvml.NO_INSTANCE,
    *,
    kind: int = XID_EVENT,
) -> None:
    def with_event(state: nvml.NvmlState) -> nvml.NvmlState:
        sequence = max((event.sequence for event in state.events), default=0) + 1
        event = nvml.Event(sequence, uuid, kind, number, gpu_instance, compute_instance)
        return msgspec.structs.replace(state, events=(*state.events, event)[-_KEPT_EVENTS:])

    _edit(root, with_event)


def _add_fault(root: Path, machine: Machine | None, device: str | None, fault: nvml.Fault) -> None:
    machine, _ = _recall(root, machine)
    if fault.function is not None:
        _check_function(root, fault.function)
    fault = msgspec.structs.replace(fault, device=device and _gpu(machine, device))
    with nvml.locked(root / "lib"):
        _edit(root, lambda state: msgspec.structs.replace(state, faults=(*state.faults, fault)))


def _check_function(root: Path, function: str) -> None:
    """Refuse a name that the library does not have: such a fault would never happen."""
    library = (root / "lib" / nvml.LIBRARY).read_bytes()
    # The dynamic string table holds every exported name, each closed with a NUL.
    stem = b"\0" + function.encode()
    if not function.startswith("nvml") or not any(stem + end in library for end in (b"\0", b"_v2\0", b"_v3\0")):
        raise UsageError(
            f"the simulated NVML has no function {function!r}", hint="name one as NVML does: nvmlDeviceGetMemoryInfo"
        )


def _edit(root: Path, change: Callable[[nvml.NvmlState], nvml.NvmlState]) -> None:
    nvml.write(root / "lib", change(nvml.read(root / "lib")))
