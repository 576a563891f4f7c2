"""Utilization by process of NVIDIA GPUs, through the NVML process that the inventory has started.

The driver keeps samples of the last seconds. nvmlDeviceGetProcessUtilization returns one for each process that worked
after a time, with its average since then (nvml.h; nvidia-smi(1), pmon: "since the last monitoring cycle"). Drivers have
returned amounts far above 100 %, and samples from before that time (Syllo/nvtop#110, NVIDIA/DCGM#83). What is wrong of
one process leaves the claim of this process without a value, not the others: their samples are separate. The time of a
sample is since the epoch, or since boot, as others have found with nvmlDeviceGetSamples
(polarsignals/gpu-metrics-agent#36).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

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


class _Sample(NamedTuple):
    at_us: int
    sm: int
    memory: int


def make(host: Host) -> NvidiaProcesses:
    """Create the source."""
    return NvidiaProcesses(host)


class NvidiaProcesses:
    """Reads whole GPUs by UUID: nvml.h states that GPUs in MIG mode do not support it."""

    name = "nvml-processes"

    def __init__(
        self,
        host: Host,
        *,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - samples of NVML have times of the wall clock
        elapsed: Callable[[], float] = boottime,
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
        times = [at_us for _, at_us, _, _ in samples if (since_us or 0) < at_us <= _latest_us(now_s)]
        self._newest_us[uuid] = max(times, default=since_us or 0)
        if since_us is None:
            return None
        by_pid: dict[int, list[_Sample]] = {}
        for pid, at_us, sm, memory in samples:
            if sm or memory:
                by_pid.setdefault(pid, []).append(_Sample(at_us, sm, memory))
        uses = (self._use(pid, found, since_us, now_s, booted_s) for pid, found in by_pid.items())
        return tuple(use for use in uses if use is not None)

    def _use(self, pid: int, samples: list[_Sample], since_us: int, now_s: float, booted_s: float) -> ProcessUse | None:
        """Return what the samples of a process state; None if it has ended and they are older than the last reading.

        A sample that the driver repeats is not counted twice.
        """
        first_s = min(one.at_us for one in samples) / 1e6
        # Since boot, in either clock.
        at_s = first_s if first_s <= now_s - booted_s + TOLERANCE_S else first_s - booted_s
        current = [one for one in samples if one.at_us > since_us]
        problem = ""
        if not current:
            if self._has_ended(pid, at_s):
                return None
            problem = f"no sample of process {pid} is from the time since the reading before"
        for one in current:
            if one.at_us > _latest_us(now_s):
                problem = f"a sample of process {pid} is from the future"
            if not (0 <= one.sm <= _MAX_PERCENT and 0 <= one.memory <= _MAX_PERCENT):
                problem = f"process {pid} has used {one.sm} % of the GPU and {one.memory} % of its memory"
        place = self._place(pid, at_s)
        if problem:
            return ProcessUse((place,), None, reason=problem, is_impossible=True)
        return ProcessUse(
            (place,),
            {_SM: sum(one.sm for one in current) / len(current) * _PERCENT},
            sum(one.memory for one in current) / len(current) * _PERCENT,
        )

    def _has_ended(self, pid: int, at_s: float) -> bool:
        """Return whether the process that had this PID at a time does not exist any more."""
        started = start_time(pid, self._host.proc)
        return started is None or _began_after(started, at_s)

    def _place(self, pid: int, at_s: float) -> Place:
        """Return the place of the process that had this PID at a time, in seconds since boot."""
        proc = self._host.proc
        started = start_time(pid, proc)
        place = place_of(proc, pid)
        if started is None or place is None or start_time(pid, proc) != started:
            return exited(pid)
        if _began_after(started, at_s):
            return Place("unknown", reason=f"another process had the PID {pid} before")
        if place.kind != "host":
            return place
        try:
            name = (proc / str(pid) / "comm").read_text(errors="replace")
        except OSError:
            name = ""
        if name.startswith(_MPS):
            return Place("unknown", reason=f"process {pid} is the MPS server of several claims")
        return place

    def close(self) -> None:
        """Leave the library to the inventory."""
        self._nvml.close()


def _latest_us(now_s: float) -> int:
    """Return the time from which on a sample is from the future."""
    return round((now_s + TOLERANCE_S) * 1e6)


def _began_after(started: int, at_s: float) -> bool:
    """Return whether a process that started at these clock ticks began after a time, both since boot."""
    return started / os.sysconf("SC_CLK_TCK") > at_s + TOLERANCE_S
