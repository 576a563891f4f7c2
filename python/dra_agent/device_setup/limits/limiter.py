"""Holds the containers of a claim to its shares: the hook sets the kernel's limit, and asks here for the driver's."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from dra_agent.cdi.model import ContainerEdits
from dra_agent.cdi.names import check_uid
from dra_agent.deadline import Deadline
from dra_agent.device_setup.container_hook import ContainerHook
from dra_agent.device_setup.limits.cgroups import check_cgroup, hierarchy
from dra_agent.device_setup.limits.driver_limit import DriverLimit
from dra_agent.device_setup.limits.share_limits import ShareLimit, ShareLimitStore
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.prepare.locks import SETUP_TIMEOUT_S, setup_locks
from dra_agent.prepare.setup import SetupDevice

log = logging.getLogger(__name__)


class LimitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the hook asks for: the line on the socket."""

    claim: str
    key: str
    cgroup: str


class Limiter:
    """The limits of one host; safe to use from several threads."""

    def __init__(self, host: Host, state_dir: Path, host_folder: Path, driver: DriverLimit) -> None:
        """`host_folder` is known to runtimes by the same path: hook and socket lie there."""
        self._host = host
        self._hook = ContainerHook(host_folder)
        self._grants = ShareLimitStore(state_dir / "limits")
        self._claims = setup_locks(None, "limits")
        self._driver = driver

    def grant(self, uid: str, item: SetupDevice, enforcement: str, amount: int, deadline: Deadline) -> ContainerEdits:
        """Allow a share this many bytes: gives the hook that holds each container to it."""
        self._hook.install()
        root = hierarchy(self._host.sysfs)
        where = ("--cgroups", str(root))
        if enforcement == "dmem":
            region = item.device.identity.get("dmem")
            if region is None:
                raise RetryableError(
                    "its memory is not registered with the cgroup controller dmem now",
                    where=f"device {item.device.name}",
                    hint="see `dra-agent devices` for what is wrong",
                )
            return self._hook.edits(*where, "--region", region, "--bytes", str(amount))
        uuid = item.device.identity.get("uuid")
        if uuid is None:
            raise RetryableError("NVIDIA's driver does not have it now", where=f"device {item.device.name}")
        with self._claims.hold([uid], deadline.capped(SETUP_TIMEOUT_S), "a limit"):
            grants = self._grants.read(uid) or {}
            known = grants.get(item.key)
            wanted = ShareLimit(
                item.device.name, item.device.pci_address, amount, uuid, known.cgroups if known is not None else ()
            )
            if wanted != known:
                self._grants.write(uid, {**grants, item.key: wanted})
        return self._hook.asks(uid, item.key, *where)

    def revoke(self, uid: str, deadline: Deadline) -> None:
        """Forget a claim's shares: the driver forgets the limit with the cgroup."""
        with self._claims.hold([uid], deadline.capped(SETUP_TIMEOUT_S), "a limit"):
            self._grants.delete(uid, durable=False)

    def noted(self, uid: str) -> list[str]:
        """Give the keys of the shares that a claim was granted."""
        return list(self._grants.read(uid) or {})

    def apply(self, line: bytes) -> bool:
        """Hold a container to a share, as the hook asks; PermanentError or RetryableError say why it cannot be."""
        try:
            ask = msgspec.json.decode(line, type=LimitRequest)
        except msgspec.DecodeError as error:
            raise PermanentError(f"not understood: {error}", where="a request for a limit") from error
        uid = check_uid(ask.claim)
        root = hierarchy(self._host.sysfs)
        folder = check_cgroup(root, ask.cgroup)
        with self._claims.hold([uid], Deadline.of(SETUP_TIMEOUT_S), "a limit"):
            grants = self._grants.read(uid) or {}
            grant = grants.get(ask.key)
            if grant is None:
                raise PermanentError("has no such share that is to be limited", where=f"claim {uid}, {ask.key}")
            self._driver.set(grant.uuid, grant.pci_address, folder, grant.bytes)
            # A container that starts again has another cgroup each time.
            alive = tuple(name for name in grant.cgroups if name != ask.cgroup and (root / name).is_dir())
            cgroups = (*alive, ask.cgroup)
            self._grants.write(uid, {**grants, ask.key: msgspec.structs.replace(grant, cgroups=cgroups)})
        if alive and ask.cgroup not in grant.cgroups:
            log.warning(
                "several containers of one claim each have the amount of its share",
                extra={"claim": uid, "device": grant.device, "bytes": grant.bytes, "containers": len(cgroups)},
            )
        log.info("memory limited", extra={"claim": uid, "device": grant.device, "bytes": grant.bytes})
        return True
