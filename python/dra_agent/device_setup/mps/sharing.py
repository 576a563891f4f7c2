"""Sharing of GPUs through MPS: the first share starts the daemon, the last one stops it. It is supervised."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec

from dra_agent.cdi.model import ContainerEdits
from dra_agent.deadline import Deadline
from dra_agent.device_setup.mps.daemon import DEADLINE, MpsDaemon
from dra_agent.device_setup.mps.paths import MpsPaths
from dra_agent.device_setup.state_files import StateFiles
from dra_agent.errors import AgentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.nvidia.describe import find_mps_control
from dra_agent.inventory.nvidia.nvml_client import GpuLostError, NvmlClient, UnknownGpuError, acquire
from dra_agent.prepare.locks import SETUP_TIMEOUT_S, LockedError, setup_locks
from dra_agent.prepare.setup import SetupDevice


class MpsClient(msgspec.Struct, frozen=True):
    """One share of a claim."""

    memory_mib: int
    percentage: int | None = None


class SharedGpu(msgspec.Struct, frozen=True):
    """A GPU that has a control daemon."""

    uuid: str
    pci_address: str
    compute_mode: int | None
    """The original mode, to be restored; None if it is not changed (MIG)."""
    clients: dict[str, MpsClient]
    """By "UID KEY" of claim and share."""

    @property
    def largest_mib(self) -> int:
        """The largest share: the limit of a client that requests none."""
        return max((client.memory_mib for client in self.clients.values()), default=0)


class MpsClientStore(StateFiles[SharedGpu]):
    """A state file for each GPU."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SharedGpu, mode=0o755)

    def devices(self) -> list[str]:
        """Return the names of the devices that have a file."""
        try:
            return sorted(path.stem for path in self._folder.glob("*.json"))
        except OSError:
            return []

    def on_corrupt(self, path: Path, error: msgspec.DecodeError) -> None:
        """Reject it: without the file the GPU's original compute mode is unknown, and an operator has to check it."""
        raise RetryableError(
            f"is damaged: {error}", where=str(path), hint="remove it, and check the GPU's compute mode"
        ) from error


EXCLUSIVE_PROCESS = 3


class ComputeMode:
    """The compute modes of a host's GPUs, through NVML. Every method raises RetryableError if NVML fails."""

    def __init__(self, library: Path | None, timeout: float) -> None:
        self._library = library
        self._timeout = timeout
        self._nvml: NvmlClient | None = None

    def get(self, uuid: str, address: str) -> int:
        """Return the mode of a GPU."""
        return int(self._call("nvmlDeviceGetComputeMode", uuid, address))

    def set(self, uuid: str, address: str, mode: int) -> None:
        """Set the mode of a GPU."""
        self._call("nvmlDeviceSetComputeMode", uuid, address, mode)

    def restore(self, uuid: str, address: str, mode: int) -> None:
        """Set the mode, unless the GPU was removed, and its mode with it."""
        try:
            self.set(uuid, address, mode)
        except (GpuLostError, UnknownGpuError):
            return

    def close(self) -> None:
        """Close the library."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def _call(self, name: str, uuid: str, address: str, *arguments: Any) -> Any:
        if self._nvml is None:
            self._nvml = acquire(self._library, self._timeout)
        self._nvml.start()
        handle = self._nvml.call("nvmlDeviceGetHandleByUUID", uuid.encode(), about=address)
        return self._nvml.call(name, handle, *arguments, about=address)


log = logging.getLogger(__name__)


class MpsSharing:
    """The daemons of one host; thread-safe."""

    def __init__(self, host: Host, state_dir: Path, modes: ComputeMode, *, deadline: float = DEADLINE) -> None:
        self._host = host
        self._state_dir = state_dir
        self._modes = modes
        self._deadline = deadline
        self._clients = MpsClientStore(state_dir / "mps")
        self._gpus = setup_locks(state_dir, "mps")
        self._controls: dict[str, MpsDaemon] = {}
        self._sick: dict[str, str] = {}

    def attach(self, uid: str, item: SetupDevice, client: MpsClient, deadline: Deadline) -> ContainerEdits:
        """Make a share a client of its GPU's daemon, and start the daemon if needed."""
        device = item.device
        uuid = device.identity.get("uuid")
        if uuid is None:
            raise RetryableError("NVIDIA's driver does not report it", where=f"device {device.name}")
        place = self._place(device.name)
        with self._gpus.hold([device.name], deadline.capped(SETUP_TIMEOUT_S), f"claim {uid}"):
            shared = self._clients.read(device.name)
            if shared is not None and shared.uuid != uuid:
                self._end(device.name, shared)  # another GPU is in its slot
                shared = None
            if shared is None:
                whole = "parent" not in device.identity
                mode = self._modes.get(uuid, device.pci_address) if whole else None
                shared = SharedGpu(uuid, device.pci_address, mode, {})
            wanted = msgspec.structs.replace(shared, clients={**shared.clients, f"{uid} {item.key}": client})
            if wanted != shared:
                self._clients.write(device.name, wanted)
            self._stand(device.name, wanted, raised=wanted.largest_mib > shared.largest_mib)
            self._sick.pop(device.name, None)
        return place.edits(client.memory_mib, client.percentage)

    def detach(self, uid: str, key: str, deadline: Deadline) -> None:
        """Remove a share; with the last one, the daemon stops and the compute mode is restored."""
        device = key.partition("/")[0]
        with self._gpus.hold([device], deadline.capped(SETUP_TIMEOUT_S), f"claim {uid}"):
            shared = self._clients.read(device)
            if shared is None:
                return
            clients = {name: client for name, client in shared.clients.items() if name != f"{uid} {key}"}
            left = msgspec.structs.replace(shared, clients=clients)
            if left != shared:
                self._clients.write(device, left)
            if not clients:
                self._end(device, left)

    def noted(self, uid: str) -> list[str]:
        """Return the keys of the shares that the state files list for a claim."""
        shared = [self._clients.read(device) for device in self._clients.devices()]
        names = [name for one in shared if one is not None for name in one.clients]
        return [key for owner, _, key in (name.partition(" ") for name in names) if owner == uid]

    def supervise(self) -> dict[str, str]:
        """Supervise all daemons: restart those that have exited, stop unused ones; return the failures by device.

        A restarted daemon is reported once: the clients of the previous one have lost their work.
        """
        told: dict[str, str] = {}
        for device in self._clients.devices():
            try:
                with self._gpus.hold([device], Deadline.of(0), "a check of its MPS daemon"):
                    reason = self._look(device)
            except LockedError:
                # A claim is being set up on it, and reports failures itself.
                reason = self._sick.get(device)
            except AgentError as error:
                reason = str(error)
            if reason is None:
                self._sick.pop(device, None)
                continue
            told[device] = reason
            if self._sick.get(device) != reason:
                log.error("MPS daemon failed", extra={"device": device, "reason": reason})
            self._sick[device] = reason
        for gone in self._sick.keys() - told.keys():
            self._sick.pop(gone, None)
        return told

    def _look(self, device: str) -> str | None:
        shared = self._clients.read(device)
        if shared is None:
            return None
        if not shared.clients:
            self._end(
                device, shared
            )  # the agent crashed between the release of the last share and the stop of the daemon
            return None
        if self._control(device, shared.uuid).is_alive():
            return None
        self._stand(device, shared, raised=True)
        return "its MPS daemon exited and was restarted: its former clients have failed"

    def _stand(self, device: str, shared: SharedGpu, *, raised: bool) -> None:
        control = self._control(device, shared.uuid)
        if not control.is_alive():
            if shared.compute_mode is not None:
                self._modes.set(shared.uuid, shared.pci_address, EXCLUSIVE_PROCESS)
            self._place(device).make()
            control.start()
            raised = True
            log.info("MPS daemon started", extra={"device": device})
        if raised:
            control.limit(shared.largest_mib)

    def _end(self, device: str, shared: SharedGpu) -> None:
        place = self._place(device)
        if self._program() is not None:
            self._control(device, shared.uuid).quit()
        if shared.compute_mode is not None:
            self._modes.restore(shared.uuid, shared.pci_address, shared.compute_mode)
        place.remove()
        self._controls.pop(device, None)
        self._clients.delete(device)
        log.info("MPS daemon stopped", extra={"device": device})

    def _program(self) -> Path | None:
        return find_mps_control(self._host)

    def _place(self, device: str) -> MpsPaths:
        return MpsPaths.of(self._state_dir, self._host.dev, device)

    def _control(self, device: str, uuid: str) -> MpsDaemon:
        known = self._controls.get(device)
        if known is not None:
            return known
        program = self._program()
        if program is None:
            raise RetryableError(
                "nvidia-cuda-mps-control is missing from this host",
                where=f"device {device}",
                hint="install it again, or choose another enforcement in inventory.share",
            )
        # A simulated host must not change mounts of this one.
        real = self._host.dev == Path("/dev")
        made = MpsDaemon(
            program,
            self._place(device),
            uuid,
            own_shm=real,
            proc=self._host.proc if real else Path("/proc"),
            deadline=self._deadline,
        )
        self._controls[device] = made
        return made
