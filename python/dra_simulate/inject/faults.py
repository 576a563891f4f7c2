"""Makes calls of the simulated NVML and writes to the simulated kernel slow, fail, hang or end their process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from dra_agent.errors import UsageError
from dra_simulate import builder, nvml
from dra_simulate.inject.target import changing, edit, find, gpu_uuid, recall
from dra_simulate.machine import Machine

When = Literal["before", "after"]
"""A call has its effect."""
WRITTEN = frozenset({"driver_override", "unbind", "drivers_probe", "bind", "current_compute_partition"})
"""Attributes whose writes have an effect (see `kernel`)."""


def latency(
    root: Path, *, init_ms_per_gpu: int = 0, gpu_start_ms: int = 0, calls_ms: Mapping[str, int] | None = None
) -> None:
    """Set the durations of calls; the default is 0.

    With `gpu_start_ms`, persistence mode is off on every GPU, so that each process that opens one initializes it.
    """
    recall(root, None, needs_machine=False)
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
        edit(root, changed)


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
    with changing(root, None, needs_machine=False) as (_, simulated):
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
    with changing(root, machine) as (machine, simulated):
        address = find(machine, device).address
        if attribute not in WRITTEN:
            raise UsageError(f"no attribute {attribute!r} is written", hint=f"name one of {', '.join(sorted(WRITTEN))}")
        fault = builder.KernelFault(address, attribute, errno, milliseconds)
        faults = (*simulated.kernel_faults, fault)
        builder.save_state(root, msgspec.structs.replace(simulated, kernel_faults=faults))
    return address


def _add_fault(root: Path, machine: Machine | None, device: str | None, fault: nvml.Fault) -> None:
    machine, _ = recall(root, machine)
    if fault.function is not None:
        _check_function(root, fault.function)
    fault = msgspec.structs.replace(fault, device=device and gpu_uuid(machine, device))
    with nvml.locked(root / "lib"):
        edit(root, lambda state: msgspec.structs.replace(state, faults=(*state.faults, fault)))


def _check_function(root: Path, function: str) -> None:
    """Refuse a name that the library does not have: such a fault would never happen."""
    library = (root / "lib" / nvml.LIBRARY).read_bytes()
    # The dynamic string table holds every exported name, each closed with a NUL.
    stem = b"\0" + function.encode()
    if not function.startswith("nvml") or not any(stem + end in library for end in (b"\0", b"_v2\0", b"_v3\0")):
        raise UsageError(
            f"the simulated NVML has no function {function!r}", hint="name one as NVML does: nvmlDeviceGetMemoryInfo"
        )
