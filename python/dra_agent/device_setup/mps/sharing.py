"""Sharing of GPUs through MPS: the first share starts the daemon, the last one stops it. It is supervised."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec

from dra_agent.cdi.model import ContainerEdits
from dra_agent.deadline import Deadline
from dra_agent.device_setup.mps.daemon import COMMAND_TIMEOUT_S, MpsDaemon
from dra_agent.device_setup.mps.paths import MpsPaths
from dra_agent.device_setup.state_files import StateFiles
from dra_agent.driver_root import DriverRoot
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
        """Raise RetryableError: without the file the GPU's original compute mode is unknown, and has to be checked."""
        raise RetryableError(
            f"is damaged: {error}", where=str(path), hint="remove it, and check the GPU's compute mode"
        ) from error


EXCLUSIVE_PROCESS = 3


class ComputeMode:
    """The compute modes of a host's GPUs, through NVML. Every method raises RetryableError if NVML fails."""

    def __init__(self, library: Path | DriverRoot | None, timeout: float) -> None:
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

    def __init__(self, host: Host, state_dir: Path, modes: ComputeMode, *, deadline: float = COMMAND_TIMEOUT_S) -> None:
        self._host = host
        self._state_dir = state_dir
        self._modes = modes
        self._deadline = deadline
        self._clients = MpsClientStore(state_dir / "mps")
        self._locks = setup_locks(state_dir, "mps")
        self._daemons: dict[str, MpsDaemon] = {}
        self._failures: dict[str, str] = {}

    def attach(self, uid: str, item: SetupDevice, client: MpsClient, deadline: Deadline) -> ContainerEdits:
        """Make a share a client of its GPU's daemon, and start the daemon if needed.

        Raises:
            RetryableError: The driver does not report the GPU, or the daemon does not start.
        """
        device = item.device
        uuid = device.identity.get("uuid")
        if uuid is None:
            raise RetryableError("NVIDIA's driver does not report it", where=f"device {device.name}")
        paths = self._paths(device.name)
        with self._locks.hold([device.name], deadline.capped(SETUP_TIMEOUT_S), f"claim {uid}"):
            shared = self._clients.read(device.name)
            if shared is not None and (shared.uuid != uuid or not shared.clients):
                # Another GPU is in its slot, or an agent was killed between the last release and the stop.
                self._stop(device.name, shared)
                shared = None
            if shared is None:
                self._clear(device.name, uuid)
                whole = "parent" not in device.identity
                mode = self._modes.get(uuid, device.pci_address) if whole else None
                shared = SharedGpu(uuid, device.pci_address, mode, {})
            desired = msgspec.structs.replace(shared, clients={**shared.clients, f"{uid} {item.key}": client})
            if desired != shared:
                self._clients.write(device.name, desired)
            self._ensure_daemon(device.name, desired, raise_limit=desired.largest_mib > shared.largest_mib)
            self._failures.pop(device.name, None)
        return paths.edits(client.memory_mib, client.percentage)

    def detach(self, uid: str, key: str, deadline: Deadline) -> None:
        """Remove a share; with the last one, the daemon stops and the compute mode is restored."""
        device = key.partition("/")[0]
        with self._locks.hold([device], deadline.capped(SETUP_TIMEOUT_S), f"claim {uid}"):
            shared = self._clients.read(device)
            if shared is None:
                return
            clients = {name: client for name, client in shared.clients.items() if name != f"{uid} {key}"}
            remaining = msgspec.structs.replace(shared, clients=clients)
            if remaining != shared:
                self._clients.write(device, remaining)
            if not clients:
                self._stop(device, remaining)

    def noted(self, uid: str) -> list[str]:
        """Return the keys of the shares that the state files list for a claim."""
        shared = [self._clients.read(device) for device in self._clients.devices()]
        names = [name for one in shared if one is not None for name in one.clients]
        return [key for owner, _, key in (name.partition(" ") for name in names) if owner == uid]

    def supervise(self) -> dict[str, str]:
        """Supervise all daemons: restart those that have exited, stop unused ones; return the failures by device.

        A restarted daemon is reported once: the clients of the previous one have lost their work.
        """
        failures: dict[str, str] = {}
        for device in self._clients.devices():
            try:
                with self._locks.hold([device], Deadline.of(0), "a check of its MPS daemon"):
                    reason = self._check_daemon(device)
            except LockedError:
                # A claim is being set up on it, and reports failures itself.
                reason = self._failures.get(device)
            except AgentError as error:
                reason = str(error)
            if reason is None:
                self._failures.pop(device, None)
                continue
            failures[device] = reason
            if self._failures.get(device) != reason:
                log.error("MPS daemon failed", extra={"device": device, "reason": reason})
            self._failures[device] = reason
        for recovered in self._failures.keys() - failures.keys():
            self._failures.pop(recovered, None)
        return failures

    def _check_daemon(self, device: str) -> str | None:
        shared = self._clients.read(device)
        if shared is None:
            return None
        if not shared.clients:
            self._stop(
                device, shared
            )  # the agent crashed between the release of the last share and the stop of the daemon
            return None
        self._paths(device).bound_logs()
        if self._daemon(device, shared.uuid).is_alive():
            return None
        self._ensure_daemon(device, shared, raise_limit=True)
        return "its MPS daemon exited and was restarted: its former clients have failed"

    def _ensure_daemon(self, device: str, shared: SharedGpu, *, raise_limit: bool) -> None:
        daemon = self._daemon(device, shared.uuid)
        if not daemon.is_alive():
            if shared.compute_mode is not None:
                self._modes.set(shared.uuid, shared.pci_address, EXCLUSIVE_PROCESS)
            self._paths(device).make()
            daemon.start()
            raise_limit = True
            log.info("MPS daemon started", extra={"device": device})
        if raise_limit:
            daemon.limit(shared.largest_mib)

    def _stop(self, device: str, shared: SharedGpu) -> None:
        paths = self._paths(device)
        if self._program() is not None:
            self._daemon(device, shared.uuid).quit()
        if shared.compute_mode is not None:
            self._modes.restore(shared.uuid, shared.pci_address, shared.compute_mode)
        paths.remove()
        self._daemons.pop(device, None)
        self._clients.delete(device)
        log.info("MPS daemon stopped", extra={"device": device})

    def _clear(self, device: str, uuid: str) -> None:
        """Remove what earlier shares left without a state file: a daemon, and files among its pipes and in memory."""
        paths = self._paths(device)
        if paths.record.exists():
            self._daemon(device, uuid).quit()
        paths.clear()

    def _program(self) -> Path | None:
        return find_mps_control(self._host)

    def _paths(self, device: str) -> MpsPaths:
        return MpsPaths.of(self._state_dir, self._host.dev, device)

    def _daemon(self, device: str, uuid: str) -> MpsDaemon:
        cached = self._daemons.get(device)
        if cached is not None:
            return cached
        program = self._program()
        if program is None:
            raise RetryableError(
                "nvidia-cuda-mps-control is missing from this host",
                where=f"device {device}",
                hint="install it again, or choose another enforcement in inventory.share",
            )
        # A simulated host must not change mounts of this one.
        real = self._host.dev == Path("/dev")
        daemon = MpsDaemon(
            program,
            self._paths(device),
            uuid,
            own_shm=real,
            proc=self._host.proc if real else Path("/proc"),
            deadline=self._deadline,
            driver_environment=tool.environment() if (tool := self._host.driver_tool(program.name)) else None,
        )
        self._daemons[device] = daemon
        return daemon
