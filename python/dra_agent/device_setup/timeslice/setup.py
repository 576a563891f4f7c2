"""Device setup of time slices: an interval while a claim requests it, one interval on a GPU at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from dra_agent.cdi.claim import env_name
from dra_agent.cdi.model import ContainerEdits
from dra_agent.deadline import Deadline
from dra_agent.device_setup.state_files import StateFiles
from dra_agent.device_setup.timeslice.nvidia_smi import CALL_TIMEOUT_S, GoneError, NvidiaSmi
from dra_agent.driver_root import DriverTool
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.model import Device
from dra_agent.prepare.locks import SETUP_TIMEOUT_S, setup_locks
from dra_agent.prepare.setup import API_VERSION, Kind, SetupDevice, SetupOutcome, UnsuitableError

Interval = Literal["Default", "Short", "Medium", "Long"]
INTERVAL_NUMBERS: dict[Interval, int] = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
"""The values of nvidia-smi's `compute-policy --set-timeslice`; the driver determines their length."""


class TimeSlices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time slices of the programs on one GPU."""

    interval: Interval = "Default"
    """How long a program runs before the next one: short slices reduce latency, long ones overhead."""


class GpuConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of a whole NVIDIA GPU, or of a share of it, while the claim has it."""

    time_slicing: TimeSlices


class TimeSliceHolders(msgspec.Struct, frozen=True):
    """The interval of one GPU, and the claims that use it.

    If the file is corrupt, its content is lost; the interval is set again.
    """

    uuid: str
    interval: Interval
    compute_mode: str
    """The original compute mode, to be restored."""
    holders: tuple[str, ...]
    """Claims by UID, each with the key of its device after a space."""


log = logging.getLogger(__name__)

SHARED_COMPUTE_MODE = "DEFAULT"
"""The compute mode in which several programs may use a GPU."""
REFRESH_INTERVAL_S = 600.0
"""Seconds after which a repeat sets the interval again: a reloaded driver has lost it."""
_MIN_COMPUTE_CAPABILITY = (7, 0)
"""Compute capability of the first GPUs with configurable time slices (Volta)."""


class TimeSliceSetup:
    """Sets the length of time slices through nvidia-smi; thread-safe."""

    kind: Kind = (API_VERSION, "GpuConfig")
    parameters = GpuConfig

    def __init__(
        self,
        tool: Path | Callable[[], DriverTool | None] | None,
        state_dir: Path,
        *,
        deadline: float = CALL_TIMEOUT_S,
    ) -> None:
        """`tool` is the path of nvidia-smi, None without one, or finds it where a driver comes and goes."""
        self._tool_path = tool
        self._deadline = deadline
        self._holders = StateFiles(state_dir / "timeslice", TimeSliceHolders)
        self._locks = setup_locks(state_dir, "timeslice")
        self._tools: dict[tuple[str, DriverTool], NvidiaSmi] = {}
        self._applied: dict[str, tuple[Interval, float]] = {}
        """By GPU: the interval that this process has set, and when."""

    def default(self, device: Device) -> None:
        """Change nothing without parameters."""

    def check(self, device: Device, parameters: GpuConfig) -> None:
        """Accept whole NVIDIA GPUs and shares of them: time slices apply to a GPU, not to a part.

        Raises:
            UnsuitableError: It is another device.
            PermanentError: The GPU is shared through MPS, or has no time slices of the requested length.
        """
        name, attributes = self.kind[1], device.attributes
        if device.family != "gpu" or device.vendor != "nvidia":
            raise UnsuitableError(f"kind: {name} is for NVIDIA GPUs, not for a {device.family} of {device.vendor}")
        if "parent" in device.identity:
            raise UnsuitableError(
                f"kind: {name} is for whole GPUs, and this is a part of one, which has the time slices of the whole GPU"
            )
        if not device.identity.get("uuid"):
            raise UnsuitableError(
                f"kind: {name} is for GPUs that NVIDIA's driver reports, and it does not report this one"
            )
        interval = parameters.time_slicing.interval
        enforcement = attributes.get("memoryEnforcement")
        if enforcement is not None and enforcement.value == "mps":
            raise PermanentError(
                "timeSlicing: the GPU is shared through MPS, whose clients run at the same time",
                hint="remove the configuration, or choose other GPUs",
            )
        capability = attributes.get("cudaComputeCapability")
        if (
            interval != "Default"
            and capability is not None
            and _numbers(str(capability.value)) < _MIN_COMPUTE_CAPABILITY
        ):
            raise PermanentError(
                f"timeSlicing.interval: a GPU of compute capability {capability.value} has no time slices of a "
                "chosen length",
                hint="choose Default, or a GPU of compute capability 7.0 or later",
            )

    def set_up(
        self, uid: str, devices: Sequence[SetupDevice], parameters: GpuConfig, previous: Any, deadline: Deadline
    ) -> SetupOutcome:
        """Set the interval on each GPU, unless it is set; rejected while another claim has another interval there."""
        interval = parameters.time_slicing.interval
        edits: dict[str, ContainerEdits] = {}
        for item in devices:
            name = item.device.name
            with self._locks.hold([name], deadline.capped(SETUP_TIMEOUT_S), f"claim {uid}"):
                self._hold(uid, item, interval)
            edits[item.key] = ContainerEdits(env=(f"DRA_AGENT_DEVICE_{env_name(name)}_TIME_SLICE={interval}",))
        return SetupOutcome({"interval": interval}, edits)

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        """Release the GPUs; the last release resets the interval and the compute mode."""
        for key in keys:
            name = key.partition("/")[0]
            with self._locks.hold([name], deadline.capped(SETUP_TIMEOUT_S), f"claim {uid}"):
                self._release(uid, name, key)

    def roll_back(self, uid: str, keys: Sequence[str], parameters: GpuConfig, deadline: Deadline) -> None:
        """Do the same: the claims are on disk before a change."""
        self.tear_down(uid, keys, None, deadline)

    def noted(self, uid: str) -> Sequence[str]:
        """Return the keys of the devices that the state files list for the claim."""
        holders = [holder for held in self._holders.all().values() for holder in held.holders]
        return [key for owner, _, key in (holder.partition(" ") for holder in holders) if owner == uid]

    def _hold(self, uid: str, item: SetupDevice, interval: Interval) -> None:
        name, uuid = item.device.name, item.identity("uuid")
        tool = self._tool(name, uuid)
        held = self._holders.read(name)
        if held is not None and held.uuid != uuid:
            held = None  # another GPU is in its slot, and nothing is set on it
        if held is not None and held.interval != interval and (others := _others(held, uid, item.key)):
            raise _conflict_error(name, interval, held.interval, others, uid)
        holder = f"{uid} {item.key}"
        try:
            original_mode = held.compute_mode if held is not None else tool.compute_mode()
            holders = tuple(dict.fromkeys((*(held.holders if held is not None else ()), holder)))
            desired = TimeSliceHolders(uuid, interval, original_mode, holders)
            if desired != held:
                self._holders.write(name, desired)
            # If no claim has it, another agent of a rolling update may have reset the interval that this one set.
            if held is not None and self._is_current(name, interval):
                return
            # Not the original interval, which may belong to an earlier claim.
            if (original_mode if held is None else tool.compute_mode()) != SHARED_COMPUTE_MODE:
                tool.set_compute_mode(SHARED_COMPUTE_MODE)
            tool.set_time_slice(INTERVAL_NUMBERS[interval])
        except GoneError as error:
            raise RetryableError(str(error), where=f"device {name}", hint="run `dra-agent doctor`") from error
        self._applied[name] = (interval, time.monotonic())
        log.info("time slices set", extra={"device": name, "interval": interval, "claim": uid})

    def _release(self, uid: str, name: str, key: str) -> None:
        held = self._holders.read(name)
        if held is None:
            return
        holders = tuple(holder for holder in held.holders if holder != f"{uid} {key}")
        if holders:
            self._holders.write(name, TimeSliceHolders(held.uuid, held.interval, held.compute_mode, holders))
            return
        self._applied.pop(name, None)
        try:
            if self._find_tool() is None:
                raise GoneError("nvidia-smi is missing from this host")
            tool = self._tool(name, held.uuid)
            tool.set_time_slice(INTERVAL_NUMBERS["Default"])
            if held.compute_mode != SHARED_COMPUTE_MODE:
                tool.set_compute_mode(held.compute_mode)
            log.info("time slices reset", extra={"device": name, "claim": uid})
        except (GoneError, PermanentError) as error:
            # Nothing is left to reset, or it is impossible: it must not block the claim.
            log.warning("time slices not reset", extra={"device": name, "reason": str(error)})
        self._holders.delete(name)

    def _find_tool(self) -> DriverTool | None:
        tool = self._tool_path
        if tool is None or isinstance(tool, Path):
            return None if tool is None else DriverTool(tool)
        return tool()

    def _is_current(self, name: str, interval: Interval) -> bool:
        applied = self._applied.get(name)
        return applied is not None and applied[0] == interval and time.monotonic() - applied[1] < REFRESH_INTERVAL_S

    def _tool(self, name: str, uuid: str) -> NvidiaSmi:
        tool = self._find_tool()
        if tool is None:
            raise RetryableError(
                "nvidia-smi, which sets time slices, is missing from this host",
                where=f"device {name}",
                hint="install the driver's tools in the agent's PATH, or below its driver root",
            )
        known = self._tools.get((uuid, tool))
        if known is None:
            known = self._tools[uuid, tool] = NvidiaSmi(tool.path, uuid, self._deadline, tool.environment())
        return known


def _others(held: TimeSliceHolders, uid: str, key: str) -> list[str]:
    """Return the other users of the GPU with its interval: other claims, or another share of the same claim."""
    return [holder for holder in held.holders if holder != f"{uid} {key}"]


def _conflict_error(name: str, desired: Interval, held: Interval, others: list[str], uid: str) -> Exception:
    message = f"timeSlicing.interval: the claim requests {desired}, and {held} is set"
    claims = sorted({holder.partition(" ")[0] for holder in others})
    if claims == [uid]:
        return PermanentError(
            f"{message} for another share in the same claim",
            where=f"device {name}",
            hint="request one interval per GPU",
        )
    return RetryableError(
        f"{message} for claim {', '.join(claims)}",
        where=f"device {name}",
        hint="request the same interval; the agent retries until that claim is released",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
