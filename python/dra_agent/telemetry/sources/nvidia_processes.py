"""Utilization by process of NVIDIA GPUs, through the NVML process that the inventory has started.

The driver keeps samples of the last seconds. nvmlDeviceGetProcessUtilization returns one for each process that worked
after a time, with its average since then (nvml.h; nvidia-smi(1), pmon: "since the last monitoring cycle"). Drivers have
returned amounts far above 100 %, and samples from before that time (Syllo/nvtop#110, NVIDIA/DCGM#83).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection

from dra_agent.clock import boottime
from dra_agent.device_setup.shares.owners import ProcessOwners
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.inventory.nvidia.nvml_client import (
    NotSupportedError,
    NvmlClient,
    StaleHandleError,
    WorkerExitedError,
    acquire,
)
from dra_agent.processes.containers import Place, place_of
from dra_agent.processes.stat import start_time
from dra_agent.telemetry.process_use import ProcessUse, exited

CALL_TIMEOUT_S = 2.0
TOLERANCE_S = 1.0
"""Difference of two clocks that is not an error: samples have the time of the CPU, a process the ticks since boot."""
_MPS = "nvidia-cuda-mps"
"""The first 15 characters of the names of MPS' control daemon and server, which is all that the kernel keeps."""
_PERCENT = 0.01
_SM, _MAX_PERCENT = "sm", 100


def make(host: Host) -> NvidiaProcesses:
    """Create the source."""
    return NvidiaProcesses(host)


class NvidiaProcesses:
    """Reads whole GPUs by UUID: nvml.h states that GPUs in MIG mode do not support it."""

    name = "nvml-processes"

    def __init__(
        self, host: Host, *, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] = boottime
    ) -> None:
        """`wall` returns seconds since the epoch, `elapsed` those since boot."""
        self._host = host
        self._wall = wall
        self._elapsed = elapsed
        self._nvml: NvmlClient = acquire(host.nvml, CALL_TIMEOUT_S)
        self._newest_us: dict[str, int] = {}
        """By UUID: time of the newest sample that was read."""
        self._booted_s: dict[str, float] = {}
        """By UUID: when the host booted, by the wall clock of the reading before."""

    def can_read(self, device: Device) -> bool:
        """Return whether NVML counts by process there."""
        uuid = device.identity.get("uuid", "")
        return uuid.startswith("GPU-") and "parent" not in device.identity and self._nvml.is_running

    def read(
        self, device: Device, owners: ProcessOwners, users: Callable[[], Collection[int]]
    ) -> tuple[ProcessUse, ...] | None:
        """Read one GPU."""
        owners.check_visible()
        # A separate lane: the values of the device do not wait for it.
        uuid, lane = device.identity["uuid"], f"processes of {device.name}"
        since_us = self._newest_us.get(uuid)
        try:
            handle = self._nvml.call("nvmlDeviceGetHandleByUUID", uuid, about=lane, timeout=CALL_TIMEOUT_S)
            call = "process_utilization"
            samples = self._nvml.call(call, handle, since_us or 0, about=lane, timeout=CALL_TIMEOUT_S)
        except (StaleHandleError, WorkerExitedError):
            return None
        except NotSupportedError as error:
            raise ValueError(f"the driver reports no utilization by process: {error}") from None
        now_s, booted_s = self._wall(), self._wall() - self._elapsed()
        was_set = abs(booted_s - self._booted_s.get(uuid, booted_s)) > TOLERANCE_S
        self._booted_s[uuid] = booted_s
        if was_set:
            # The time of the newest sample may be in the future of the clock: none would be newer.
            self._newest_us.pop(uuid, None)
            return None
        latest_us = round((now_s + TOLERANCE_S) * 1e6)
        times = [at_us for _, at_us, _, _ in samples if (since_us or 0) < at_us <= latest_us]
        self._newest_us[uuid] = max(times, default=since_us or 0)
        if since_us is None:
            return None
        by_pid: dict[int, list[tuple[int, int, int]]] = {}
        for pid, at_us, sm, memory in samples:
            if not since_us < at_us <= latest_us:
                raise ValueError(f"a sample of process {pid} is not from the time since the reading before")
            if not (0 <= sm <= _MAX_PERCENT and 0 <= memory <= _MAX_PERCENT):
                raise ValueError(f"process {pid} has used {sm} % of the GPU and {memory} % of its memory")
            by_pid.setdefault(pid, []).append((at_us, sm, memory))
        return tuple(
            ProcessUse(
                (self._place(pid, min(at_us for at_us, _, _ in found) / 1e6 - booted_s),),
                {_SM: sum(sm for _, sm, _ in found) / len(found) * _PERCENT},
                sum(memory for _, _, memory in found) / len(found) * _PERCENT,
            )
            for pid, found in by_pid.items()
        )

    def _place(self, pid: int, at_s: float) -> Place:
        """Return the place of the process that had this PID at a time, in seconds since boot."""
        proc = self._host.proc
        started = start_time(pid, proc)
        place = place_of(proc, pid)
        if started is None or place is None or start_time(pid, proc) != started:
            return exited(pid)
        if started / os.sysconf("SC_CLK_TCK") > at_s + TOLERANCE_S:
            return Place("unknown", reason=f"another process had the PID {pid} before")
        try:
            name = (proc / str(pid) / "comm").read_text(errors="replace")
        except OSError:
            name = ""
        if place.kind == "host" and name.startswith(_MPS):
            return Place("unknown", reason=f"process {pid} is the MPS server of several claims")
        return place

    def close(self) -> None:
        """Leave the library to the inventory."""
        self._nvml.close()
