"""Device setup: sets a GPU to the mode of its first claim, and keeps the mode after the last one.

The mode is not restored: the next claim states what it needs. The memory mode (NPS) belongs to the node and is never
changed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dra_agent.cdi.edits.provider import node_edits
from dra_agent.deadline import Deadline
from dra_agent.device_setup.amd.gpu import SETTLE_TIMEOUT_S, Gpu
from dra_agent.device_setup.state_files import StateFiles
from dra_agent.device_setup.sysfs_writer import SysfsWriter, TimedWriter, write_timeout_error
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.amd.kfd import COMPUTE_MODE, KfdReader
from dra_agent.inventory.amd.partitionable import MODE, PARTITION, PARTITIONS
from dra_agent.inventory.mode_changes import ModeChanges
from dra_agent.inventory.model import Device
from dra_agent.prepare.locks import SETUP_TIMEOUT_S, setup_locks
from dra_agent.prepare.setup import API_VERSION, Kind, SetupDevice, SetupOutcome, UnsuitableError


class GpuModeHolders(msgspec.Struct, frozen=True):
    """The mode of one GPU, and the claims that use it.

    If the file is corrupt, its content is lost; the scheduler and the driver still reject a second mode.
    """

    mode: str
    holders: tuple[str, ...]
    """Claims by UID, each with the key of its device after a space."""


class AmdPartitionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a partition."""


class NotifyingWriter:
    """Writes to the kernel, and reports a change until its write returns, also one that hangs.

    Concurrent retries do not restart its timer.
    """

    def __init__(self, kernel: SysfsWriter, changes: ModeChanges, seconds: float) -> None:
        """`seconds`: maximum time for a GPU to complete the change of its mode."""
        self._kernel = kernel
        self._changes = changes
        self._seconds = seconds

    def write(self, path: str, text: str) -> None:
        """Write an attribute of a PCI device; raises the OSError of the kernel."""
        address = path.split("/")[-2]
        self._changes.begin(address, self._seconds)
        try:
            self._kernel.write(path, text)
        except BaseException:
            self._changes.end(address)
            raise
        self._changes.answered(address)

    def read(self, path: str) -> str:
        """Read an attribute; raises the OSError of the kernel."""
        return self._kernel.read(path)


log = logging.getLogger(__name__)

MODE_CHANGE_TIMEOUT_S = 20.0
"""Seconds for a change of the mode: the driver resets the GPU."""


class AmdPartitionSetup:
    """Sets partition modes; thread-safe."""

    kind: Kind = (API_VERSION, "AmdPartitionConfig")
    parameters = AmdPartitionConfig

    def __init__(
        self,
        host: Host,
        kernel: SysfsWriter,
        state_dir: Path,
        *,
        deadline: float = MODE_CHANGE_TIMEOUT_S,
        changes: ModeChanges | None = None,
    ) -> None:
        """`changes` is informed of GPUs whose mode is being changed, for components that read them concurrently."""
        self._host = host
        self._changes = changes or ModeChanges()
        self._topology = KfdReader(host)
        self._topology.follow(self._changes)
        self._writes = TimedWriter(NotifyingWriter(kernel, self._changes, deadline + SETTLE_TIMEOUT_S), deadline)
        self._holders = StateFiles(state_dir / "amd", GpuModeHolders)
        self._locks = setup_locks(state_dir, "amd")

    def default(self, device: Device) -> AmdPartitionConfig | None:
        """Set up each device that requires a mode of its GPU."""
        return AmdPartitionConfig() if MODE in device.identity else None

    def check(self, device: Device, parameters: AmdPartitionConfig) -> None:
        """Accept GPUs that claims may partition, whole and in parts; raises UnsuitableError for others."""
        if MODE not in device.identity:
            raise UnsuitableError(
                f"kind: {self.kind[1]} is for AMD GPUs that inventory.partition partitions, and this is not one"
            )

    def set_up(
        self,
        uid: str,
        devices: Sequence[SetupDevice],
        parameters: AmdPartitionConfig,
        previous: Any,
        deadline: Deadline,
    ) -> SetupOutcome:
        """Set each GPU to the mode of its devices, and find their device nodes."""
        edits = {}
        for item in devices:
            address, mode = item.device.pci_address, item.identity(MODE)
            with self._locks.hold([_gpu_of(item.key)], deadline.capped(SETUP_TIMEOUT_S), f"claim {uid}"):
                self._hold(uid, item, mode)
                if self._changes.is_written(address):
                    # A request for the mode also waits for the write, which cannot be cancelled.
                    raise write_timeout_error(address, COMPUTE_MODE)
                gpu = Gpu(self._host, address, self._writes, self._topology)
                if gpu.mode != mode:
                    before = gpu.mode
                    deadline.check(f"device {item.device.name}")
                    gpu.set_mode(mode, int(item.identity(PARTITIONS)), deadline)
                    self._changes.end(address)
                    log.info("GPU partitioned", extra={"device": address, "mode": mode, "was": before, "claim": uid})
                paths = gpu.nodes(int(item.identity(PARTITION)))
            node_paths = [(path, str(self._host.dev_path(path))) for path in paths]
            edits[item.key] = node_edits(node_paths, device=item.device.name)
        return SetupOutcome({item.key: item.identity(MODE) for item in devices}, edits)

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        """Release the GPUs."""
        for key in keys:
            gpu = _gpu_of(key)
            with self._locks.hold([gpu], deadline.capped(SETUP_TIMEOUT_S), f"claim {uid}"):
                held = self._holders.read(gpu)
                if held is None:
                    continue
                holders = tuple(holder for holder in held.holders if holder != f"{uid} {key}")
                if holders:
                    self._holders.write(gpu, GpuModeHolders(held.mode, holders))
                else:
                    self._holders.delete(gpu)

    def roll_back(self, uid: str, keys: Sequence[str], parameters: AmdPartitionConfig, deadline: Deadline) -> None:
        """Do the same as undo: a mode that no claim uses is changed by the next claim."""
        self.tear_down(uid, keys, None, deadline)

    def noted(self, uid: str) -> Sequence[str]:
        """Return the keys of the devices that the state files list for the claim."""
        holders = [holder for held in self._holders.all().values() for holder in held.holders]
        return [key for owner, _, key in (holder.partition(" ") for holder in holders) if owner == uid]

    def _hold(self, uid: str, item: SetupDevice, mode: str) -> None:
        gpu = _gpu_of(item.key)
        held = self._holders.read(gpu)
        own = f"{uid} {item.key}"
        others = tuple(holder for holder in (held.holders if held is not None else ()) if holder != own)
        if held is not None and others and held.mode != mode:
            claims = ", ".join(sorted({holder.partition(" ")[0] for holder in others}))
            raise RetryableError(
                f"its GPU is in mode {held.mode} for claim {claims}, and it needs {mode}",
                where=f"device {item.device.name}",
                hint="the agent retries until that claim is released",
            )
        desired = GpuModeHolders(mode, (*others, own))
        if desired != held:
            self._holders.write(gpu, desired)


def _gpu_of(key: str) -> str:
    """Return the name of the whole GPU of a device: "gpu-0000-0c-00-0-cpx-3" belongs to "gpu-0000-0c-00-0"."""
    return "-".join(key.partition("/")[0].split("-")[:5])
