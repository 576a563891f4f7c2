"""Limits the memory of a claim's containers to its shares: by the kernel's dmem controller, or by the driver."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from dra_agent import atomic_file
from dra_agent.cdi.model import ContainerEdits
from dra_agent.cdi.names import check_uid
from dra_agent.deadline import Deadline
from dra_agent.device_setup.container_hook import ContainerHook
from dra_agent.device_setup.state_files import StateFiles
from dra_agent.driver_root import DriverRoot
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.nvidia.nvml_client import NvmlClient, acquire
from dra_agent.json_decode import decode_json
from dra_agent.prepare.locks import SETUP_TIMEOUT_S, setup_locks
from dra_agent.prepare.setup import SetupDevice

_MAX_CGROUP_PATH_CHARS = 4096


def cgroup_root(sysfs: Path) -> Path:
    """Return the mount point of the hierarchy; RetryableError if it is not mounted."""
    for root in (sysfs / "fs/cgroup", sysfs / "fs/cgroup/unified"):
        if (root / "cgroup.controllers").exists():
            return root
    raise RetryableError(
        "the host has no unified cgroup hierarchy (version 2)",
        where=str(sysfs / "fs/cgroup"),
        hint="boot the host with it",
    )


def check_cgroup(root: Path, name: str) -> Path:
    """Return the directory of a cgroup below the root; PermanentError for the root itself and for invalid paths."""
    parts = name.split("/")
    if len(name) > _MAX_CGROUP_PATH_CHARS or not name.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise PermanentError("is not the path of a container's cgroup", where=repr(name[:200]))
    folder = root.joinpath(*parts)
    if not folder.is_dir() or folder.resolve() != root.resolve().joinpath(*parts):
        raise PermanentError("is not a cgroup of this host", where=str(folder))
    return folder


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """Memory of one GPU, as the driver counts it for a cgroup, in bytes; None: no limit."""

    limit: int | None
    used: int


class DriverLimit:
    """Limits by cgroup, through NVML. Every method raises RetryableError if NVML fails."""

    def __init__(self, library: Path | DriverRoot | None, timeout: float) -> None:
        self._library = library
        self._timeout = timeout
        self._nvml: NvmlClient | None = None

    def set(self, uuid: str, address: str, cgroup: Path, amount: int) -> None:
        """Guarantee this amount to a cgroup, and limit it to the amount: the scheduler never allocates more."""
        self._call("set_memory_limits", uuid, address, cgroup, amount, amount)

    def get(self, uuid: str, about: str, cgroup: Path) -> CgroupMemory:
        """Return limit and usage of a cgroup; `about` is the lane of the calls."""
        _, limit, used = self._call("get_memory_limits", uuid, about, cgroup)
        return CgroupMemory(None if limit == self._module.NVML_DEVICE_MEMORY_LIMIT_MAX else limit, used)

    def close(self) -> None:
        """Close the library."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    @property
    def _module(self) -> ModuleType:
        assert self._nvml is not None
        return self._nvml.module

    def _call(self, name: str, uuid: str, about: str, cgroup: Path, *amounts: int) -> Any:
        if self._nvml is None:
            self._nvml = acquire(self._library, self._timeout)
        self._nvml.start()
        handle = self._nvml.call("nvmlDeviceGetHandleByUUID", uuid.encode(), about=about)
        return self._nvml.call(name, handle, str(cgroup), *amounts, about=about)


class ShareLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """One share."""

    device: str
    pci_address: str
    bytes: int
    uuid: str = ""
    """Of the GPU, if its driver enforces the limit."""
    cgroups: tuple[str, ...] = ()
    """Cgroups of containers that the agent has limited, below the unified hierarchy."""


class ShareLimitStore(StateFiles[dict[str, ShareLimit]]):
    """A state file for each claim: its shares by key."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, dict[str, ShareLimit])

    def path(self, name: str) -> Path:
        """Return the path for a claim's shares; PermanentError for a UID that could leave the directory."""
        return super().path(check_uid(name))

    def on_corrupt(self, path: Path, error: msgspec.DecodeError) -> None:
        """Quarantine the file, and raise PermanentError: no container may start without its limit."""
        atomic_file.quarantine(path)
        raise PermanentError(f"is damaged: {error}", where=str(path), hint="delete the claim's pods") from error


log = logging.getLogger(__name__)


class LimitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of the hook: one line on the socket."""

    claim: str
    key: str
    cgroup: str


class Limiter:
    """The limits of one host; thread-safe."""

    def __init__(self, host: Host, state_dir: Path, host_folder: Path, driver: DriverLimit) -> None:
        """`host_folder` has the same path for runtimes: it contains hook and socket."""
        self._host = host
        self._hook = ContainerHook(host_folder)
        self._grants = ShareLimitStore(state_dir / "limits")
        self._locks = setup_locks(None, "limits")
        self._driver = driver

    def grant(self, uid: str, item: SetupDevice, enforcement: str, amount: int, deadline: Deadline) -> ContainerEdits:
        """Record the limit of a share in bytes; return the hook that applies it to each container.

        Raises:
            RetryableError: The driver does not report the device, or the limit cannot be written.
        """
        self._hook.install()
        root = cgroup_root(self._host.sysfs)
        where = ("--cgroups", str(root))
        if enforcement == "dmem":
            region = item.device.identity.get("dmem")
            if region is None:
                raise RetryableError(
                    "its memory is not registered with the cgroup controller dmem",
                    where=f"device {item.device.name}",
                    hint="check `dra-agent devices` for its diagnostics",
                )
            return self._hook.edits(*where, "--region", region, "--bytes", str(amount))
        uuid = item.device.identity.get("uuid")
        if uuid is None:
            raise RetryableError("NVIDIA's driver does not report it", where=f"device {item.device.name}")
        with self._locks.hold([uid], deadline.capped(SETUP_TIMEOUT_S), "a limit"):
            grants = self._grants.read(uid) or {}
            current = grants.get(item.key)
            desired = ShareLimit(
                item.device.name, item.device.pci_address, amount, uuid, current.cgroups if current is not None else ()
            )
            if desired != current:
                self._grants.write(uid, {**grants, item.key: desired})
        return self._hook.request_edits(uid, item.key, *where)

    def revoke(self, uid: str, deadline: Deadline) -> None:
        """Delete a claim's shares: the driver drops the limit with the cgroup."""
        with self._locks.hold([uid], deadline.capped(SETUP_TIMEOUT_S), "a limit"):
            self._grants.delete(uid, durable=False)

    def noted(self, uid: str) -> list[str]:
        """Return the keys of the recorded shares of a claim."""
        return list(self._grants.read(uid) or {})

    def apply(self, line: bytes) -> bool:
        """Limit a container to a share, on request of the hook. PermanentError or RetryableError if that fails."""
        try:
            request = decode_json(line, type=LimitRequest)
        except msgspec.DecodeError as error:
            raise PermanentError(f"invalid: {error}", where="a request for a limit") from error
        uid = check_uid(request.claim)
        root = cgroup_root(self._host.sysfs)
        folder = check_cgroup(root, request.cgroup)
        with self._locks.hold([uid], Deadline.of(SETUP_TIMEOUT_S), "a limit"):
            grants = self._grants.read(uid) or {}
            grant = grants.get(request.key)
            if grant is None:
                raise PermanentError("has no such share to limit", where=f"claim {uid}, {request.key}")
            self._driver.set(grant.uuid, grant.pci_address, folder, grant.bytes)
            # A restarted container has a new cgroup.
            alive = tuple(name for name in grant.cgroups if name != request.cgroup and (root / name).is_dir())
            cgroups = (*alive, request.cgroup)
            self._grants.write(uid, {**grants, request.key: msgspec.structs.replace(grant, cgroups=cgroups)})
        if alive and request.cgroup not in grant.cgroups:
            log.warning(
                "several containers of one claim each have the full amount of its share",
                extra={"claim": uid, "device": grant.device, "bytes": grant.bytes, "containers": len(cgroups)},
            )
        log.info("memory limited", extra={"claim": uid, "device": grant.device, "bytes": grant.bytes})
        return True
