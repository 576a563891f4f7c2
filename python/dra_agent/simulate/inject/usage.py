"""Sets what a simulated host is used for: values of telemetry, processes on GPUs, traffic of interfaces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dra_agent.simulate import nvml
from dra_agent.simulate.inject.target import edit, gpu_uuid, recall, set_condition
from dra_agent.simulate.machine import Machine
from dra_agent.simulate.tree import replace_file


def load(root: Path, device: str, machine: Machine | None = None, **values: object) -> str:
    """Set values that telemetry reads of a GPU, by the names of `nvml.Condition`; return the GPU's UUID."""
    return set_condition(root, device, machine, **values)


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
    machine, _ = recall(root, machine)
    uuid = gpu_uuid(machine, device)
    now_ms = round(time.time() * 1000)  # noqa: TID251 - another process, which has only this clock in common, plays a schedule
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
        edit(root, changed)
    return uuid


def skip(root: Path, seconds: float) -> None:
    """Let that much time pass in all schedules that are played."""

    def changed(state: nvml.NvmlState) -> nvml.NvmlState:
        earlier = [
            msgspec.structs.replace(one, started_at_ms=one.started_at_ms - round(seconds * 1000)) for one in state.loads
        ]
        return msgspec.structs.replace(state, loads=tuple(earlier))

    with nvml.locked(root / "lib"):
        edit(root, changed)


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
    machine, _ = recall(root, machine)
    uuid = gpu_uuid(machine, device)
    process = nvml.Process(uuid, pid, memory_bytes, gpu_instance, compute_instance, cgroup, utilization, sampled_at_us)
    with nvml.locked(root / "lib"):
        edit(root, lambda state: msgspec.structs.replace(state, processes=(*_others(state, process), process)))
    return uuid


def _others(state: nvml.NvmlState, process: nvml.Process) -> Iterator[nvml.Process]:
    """Return the processes that the new one does not replace."""
    return (one for one in state.processes if _identity(one) != _identity(process))


def _identity(process: nvml.Process) -> tuple[str, int, int, int]:
    return process.device, process.pid, process.gpu_instance, process.compute_instance


def end_process(root: Path, pid: int) -> int:
    """End a compute process on every GPU; returns the number of GPUs that it used."""
    recall(root, None, needs_machine=False)
    with nvml.locked(root / "lib"):
        old = nvml.read(root / "lib")
        rest = tuple(process for process in old.processes if process.pid != pid)
        nvml.write(root / "lib", msgspec.structs.replace(old, processes=rest))
    return len(old.processes) - len(rest)
