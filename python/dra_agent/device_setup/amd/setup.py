"""The set-up: a GPU is put into the mode of the first claim that has something of it, and stays in it after the last.

Nobody is served by going back: the next claim says what it needs. The memory mode (NPS) is the node's, never changed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dra_agent.cdi.edits.provider import node_edits
from dra_agent.deadline import Deadline
from dra_agent.device_setup.amd.gpu import ATTRIBUTE, SETTLED, Gpu
from dra_agent.device_setup.state_files import StateFiles
from dra_agent.device_setup.sysfs_writer import SysfsWriter, TimedWriter, write_timeout_error
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.amd.partitionable import MODE, PARTITION, PARTITIONS
from dra_agent.inventory.mode_changes import ModeChanges
from dra_agent.inventory.model import Device
from dra_agent.prepare.locks import SETUP_TIMEOUT_S, setup_locks
from dra_agent.prepare.setup import API_VERSION, Kind, SetupDevice, SetupOutcome, UnsuitableError


class GpuModeHolders(msgspec.Struct, frozen=True):
    """The mode of one GPU, and for whom it is in it.

    Where it is damaged what it said is lost; the scheduler and the driver still refuse a second mode.
    """

    mode: str
    holders: tuple[str, ...]
    """Claims by uid, each with the key of its device behind a space."""


class AmdPartitionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a partition."""


class NotifyingWriter:
    """The kernel; it announces from the write's own thread, so that one that hangs is announced for as long as it does.

    Nobody who tries again meanwhile begins its time anew.
    """

    def __init__(self, kernel: SysfsWriter, changes: ModeChanges, seconds: float) -> None:
        """`seconds`: how long a GPU may take until it has settled in its new mode."""
        self._kernel = kernel
        self._changes = changes
        self._seconds = seconds

    def write(self, path: str, text: str) -> None:
        """Write an attribute of a PCI device; OSError as the kernel answers."""
        address = path.split("/")[-2]
        self._changes.begin(address, self._seconds)
        try:
            self._kernel.write(path, text)
        except BaseException:
            self._changes.end(address)
            raise
        self._changes.answered(address)

    def read(self, path: str) -> str:
        """Read an attribute; OSError as the kernel answers."""
        return self._kernel.read(path)


log = logging.getLogger(__name__)

DEADLINE = 20.0
"""Seconds for a change of the mode: the driver takes the GPU down and up again."""


class AmdPartitionSetup:
    """Divides GPUs; safe to use from several threads."""

    kind: Kind = (API_VERSION, "AmdPartitionConfig")
    parameters = AmdPartitionConfig

    def __init__(
        self,
        host: Host,
        kernel: SysfsWriter,
        state_dir: Path,
        *,
        deadline: float = DEADLINE,
        changes: ModeChanges | None = None,
    ) -> None:
        """`changes` hears which GPUs are being divided, for those who look at them meanwhile."""
        self._host = host
        self._changes = changes or ModeChanges()
        self._writes = TimedWriter(NotifyingWriter(kernel, self._changes, deadline + SETTLED), deadline)
        self._holders = StateFiles(state_dir / "amd", GpuModeHolders)
        self._gpus = setup_locks(state_dir, "amd")

    def default(self, device: Device) -> AmdPartitionConfig | None:
        """Set up every device that needs its GPU in a certain mode."""
        return AmdPartitionConfig() if MODE in device.identity else None

    def check(self, device: Device, parameters: AmdPartitionConfig) -> None:
        """Take GPUs that claims may divide, as a whole and in parts."""
        if MODE not in device.identity:
            raise UnsuitableError(
                f"kind: {self.kind[1]} is for AMD GPUs that inventory.partition offers in parts, and this is none"
            )

    def set_up(
        self,
        uid: str,
        devices: Sequence[SetupDevice],
        parameters: AmdPartitionConfig,
        previous: Any,
        deadline: Deadline,
    ) -> SetupOutcome:
        """Put each GPU into the mode of its devices, and find their nodes."""
        edits = {}
        for item in devices:
            address, mode = item.device.pci_address, item.device.identity[MODE]
            with self._gpus.hold([_gpu_of(item.key)], deadline.capped(SETUP_TIMEOUT_S), f"claim {uid}"):
                self._hold(uid, item, mode)
                if self._changes.is_written(address):
                    # Who asks for the mode waits for the write, too, and cannot be ended.
                    raise write_timeout_error(address, ATTRIBUTE)
                gpu = Gpu(self._host, address, self._writes)
                if gpu.mode != mode:
                    before = gpu.mode
                    deadline.check(f"device {item.device.name}")
                    gpu.put_into(mode, int(item.device.identity[PARTITIONS]))
                    self._changes.end(address)
                    log.info("GPU divided", extra={"device": address, "mode": mode, "was": before, "claim": uid})
                paths = gpu.nodes(int(item.device.identity[PARTITION]))
            hosts = [(path, str(self._host.dev_path(path))) for path in paths]
            edits[item.key] = node_edits(hosts, device=item.device.name)
        return SetupOutcome({item.key: item.device.identity[MODE] for item in devices}, edits)

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        """Let go of the GPUs."""
        for key in keys:
            gpu = _gpu_of(key)
            with self._gpus.hold([gpu], deadline.capped(SETUP_TIMEOUT_S), f"claim {uid}"):
                held = self._holders.read(gpu)
                if held is None:
                    continue
                holders = tuple(holder for holder in held.holders if holder != f"{uid} {key}")
                if holders:
                    self._holders.write(gpu, GpuModeHolders(held.mode, holders))
                else:
                    self._holders.delete(gpu)

    def roll_back(self, uid: str, keys: Sequence[str], parameters: AmdPartitionConfig, deadline: Deadline) -> None:
        """The same: a mode that was set for nobody in the end is one that the next claim changes."""
        self.tear_down(uid, keys, None, deadline)

    def noted(self, uid: str) -> Sequence[str]:
        """Give the keys of the devices that the notes say the claim has."""
        holders = [holder for held in self._holders.all().values() for holder in held.holders]
        return [key for owner, _, key in (holder.partition(" ") for holder in holders) if owner == uid]

    def _hold(self, uid: str, item: SetupDevice, mode: str) -> None:
        gpu = _gpu_of(item.key)
        held = self._holders.read(gpu)
        mine = f"{uid} {item.key}"
        others = tuple(holder for holder in (held.holders if held is not None else ()) if holder != mine)
        if held is not None and others and held.mode != mode:
            claims = ", ".join(sorted({holder.partition(" ")[0] for holder in others}))
            raise RetryableError(
                f"its GPU is in mode {held.mode} for claim {claims}, and it needs {mode}",
                where=f"device {item.device.name}",
                hint="it is tried again until that claim is released",
            )
        wanted = GpuModeHolders(mode, (*others, mine))
        if wanted != held:
            self._holders.write(gpu, wanted)


def _gpu_of(key: str) -> str:
    """Name the whole GPU of a device, as its address makes it: "gpu-0000-0c-00-0-cpx-3" is of "gpu-0000-0c-00-0"."""
    return "-".join(key.partition("/")[0].split("-")[:5])
