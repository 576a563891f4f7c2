"""Device setup of network adapters: the MTU, the hook that requests the move, and the restore after it."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dra_agent.cdi.claim import env_name
from dra_agent.cdi.model import ContainerEdits
from dra_agent.deadline import Deadline
from dra_agent.device_setup import rtnetlink
from dra_agent.device_setup.container_hook import ContainerHook
from dra_agent.device_setup.net.interfaces import Interfaces
from dra_agent.device_setup.net.mover import TASK, InterfaceMover
from dra_agent.device_setup.net.parameters import MOST, InterfaceConfig, NicConfig, OriginalInterface
from dra_agent.device_setup.state_files import StateFiles
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.addresses import addresses
from dra_agent.inventory.model import Device
from dra_agent.inventory.moved import INTERFACE_ATTRIBUTES
from dra_agent.inventory.process_visibility import hidden_processes_reason
from dra_agent.inventory.uplink import is_ours
from dra_agent.prepare.locks import SETUP_TIMEOUT_S, setup_locks
from dra_agent.prepare.setup import API_VERSION, Kind, SetupDevice, SetupOutcome, UnsuitableError

log = logging.getLogger(__name__)

PATIENCE = 3.0
"""Maximum seconds for an interface to return: the kernel removes a network namespace after its last process."""
_LOOK = 0.05


class NicSetup:
    """Sets up interfaces for containers; thread-safe."""

    kind: Kind = (API_VERSION, "NicConfig")
    parameters = NicConfig

    def __init__(
        self,
        host: Host,
        state_dir: Path,
        host_folder: Path,
        *,
        patience: float = PATIENCE,
    ) -> None:
        """`host_folder` has the same path for runtimes: it contains hook and socket."""
        self._host = host
        self._patience = patience
        self._hook = ContainerHook(host_folder)
        self._interfaces = Interfaces(host.sysfs)
        self._kept = StateFiles(state_dir / "net", OriginalInterface, most=MOST)
        self._devices = setup_locks(state_dir, "net")
        self.mover = InterfaceMover(self._interfaces, self._kept, self._devices, patience)

    def hook_tasks(self) -> Mapping[str, Callable[[bytes], bool]]:
        """See dra_agent.prepare.setup.HookHandler."""
        return {TASK: self.mover.move}

    def default(self, device: Device) -> None:
        """Change nothing without parameters."""

    def check(self, device: Device, parameters: NicConfig) -> None:
        """Accept NICs with an interface that the host does not need."""
        if device.family != "nic":
            raise UnsuitableError(f"kind: {self.kind[1]} is for NICs, not for a {device.family}")
        if not device.identity.get("ifname"):
            raise PermanentError(
                "interface: the device has none on this host", hint="choose another NIC, or leave interface out"
            )
        if "uplink" in device.identity:
            raise PermanentError("interface: the host itself uses it", hint="choose another NIC")
        if self._host.net is not None:
            raise PermanentError(
                "interface: the agent has its own network namespace and cannot change the host's",
                hint="run it as a host service, or with hostNetwork and privileged",
            )
        if parameters.interface.name is not None and (blind := hidden_processes_reason(self._host)):
            raise PermanentError(
                f"interface.name: a container's network is found by one of its processes, and {blind}",
                hint="run it with systemd/net.conf, or with hostPID, hostNetwork and privileged; or leave the name out",
            )

    def set_up(
        self, uid: str, devices: Sequence[SetupDevice], parameters: NicConfig, previous: Any, deadline: Deadline
    ) -> SetupOutcome:
        """Set the MTU, and add the hook to containers; nothing is changed once the interface was moved."""
        wanted = parameters.interface
        if wanted.name is not None and len(devices) > 1:
            names = ", ".join(item.device.name for item in devices)
            raise PermanentError(
                f"interface.name: {wanted.name} would name {len(devices)} interfaces ({names})",
                hint="put each device in a separate request with its own configuration",
            )
        edits: dict[str, ContainerEdits] = {}
        record: dict[str, str] = {}
        for item in devices:
            with self._devices.hold([item.device.name], deadline.capped(SETUP_TIMEOUT_S), f"claim {uid}"):
                before = self._before(uid, item, wanted)
                record[item.key] = before.ifname
                present = self._interfaces.of(before.address)
                if wanted.mtu is not None and present is not None and before.ifname in present:
                    self._set_mtu(item.device.name, before.ifname, wanted.mtu)
            if wanted.name is not None:
                self._hook.install()
                told = f"DRA_AGENT_DEVICE_{env_name(item.device.name)}_IFNAME={wanted.name}"
                asks = self._hook.asks(uid, item.key, "--task", TASK)
                edits[item.key] = ContainerEdits(env=(told,)).merged(asks)
        return SetupOutcome(record, edits)

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        """Restore each interface; RetryableError while it has not returned."""
        for key in keys:
            name = key.partition("/")[0]
            with self._devices.hold([name], deadline.capped(SETUP_TIMEOUT_S), f"claim {uid}"):
                before = self._kept.read(name)
                if before is None or before.uid != uid:
                    continue
                self._put_back(name, before, deadline)
                self._kept.delete(name)

    def roll_back(self, uid: str, keys: Sequence[str], parameters: NicConfig, deadline: Deadline) -> None:
        """Do the same: the original state of an interface is on disk before a change."""
        self.tear_down(uid, keys, None, deadline)

    def noted(self, uid: str) -> Sequence[str]:
        """Return the names of the devices whose interfaces the claim has."""
        return [name for name, before in self._kept.all().items() if before.uid == uid]

    def _before(self, uid: str, item: SetupDevice, wanted: InterfaceConfig) -> OriginalInterface:
        device = item.device.name
        before = self._kept.read(device)
        if before is not None and before.uid == uid:
            if before.interface != wanted:  # recorded by an agent that saved less
                before = msgspec.structs.replace(before, interface=wanted)
                self._kept.write(device, before)
            return before
        ifname = item.device.identity.get("ifname")
        if not ifname:
            raise RetryableError("its interface is not on the host", where=f"device {device}")
        try:
            mtu, up = self._interfaces.mtu(ifname), self._interfaces.is_up(ifname)
            hardware = self._interfaces.hardware_address(ifname)
        except (OSError, ValueError) as error:
            raise RetryableError(f"{ifname} cannot be read: {error}", where=f"device {device}") from error
        given = addresses(ifname, hardware, permanent=True) if wanted.name is not None else ()
        attributes = item.device.attributes
        described = {name: attributes[name] for name in INTERFACE_ATTRIBUTES if name in attributes}
        link = self._described(ifname, hardware) if wanted.name is not None else None
        before = OriginalInterface(
            uid, item.device.pci_address, ifname, mtu, up, hardware, given, link, described, wanted
        )
        self._kept.write(device, before)
        return before

    def _described(self, ifname: str, hardware: str) -> rtnetlink.Link | None:
        """Return the properties that only rtnetlink shows; None if the interface is not the one in /sys."""
        if not is_ours(ifname, hardware):
            return None
        return rtnetlink.ask(rtnetlink.Describe(ifname, hardware)).link

    def _set_mtu(self, device: str, ifname: str, mtu: int) -> None:
        try:
            if self._interfaces.mtu(ifname) != mtu:
                self._interfaces.set_mtu(ifname, mtu)
                log.info("MTU set", extra={"device": device, "interface": ifname, "mtu": mtu})
        except OSError as error:
            what = f"interface.mtu: {ifname} does not accept {mtu}: {error.strerror}"
            if error.errno in (errno.EINVAL, errno.ERANGE):
                raise PermanentError(what, where=f"device {device}", hint="request a smaller MTU") from error
            raise RetryableError(what, where=f"device {device}") from error

    def _put_back(self, device: str, before: OriginalInterface, deadline: Deadline) -> None:
        now = self._back(device, before, deadline)
        if now is None:
            log.warning("the NIC is missing, its interface is not restored", extra={"device": device})
            return
        try:
            if before.network or (before.moving and before.link is not None):
                self._reset(device, now, before)
            if now != before.ifname:
                if self._interfaces.is_up(now):
                    self._interfaces.set_link_up(now, on=False)
                self._interfaces.rename(now, before.ifname)
            if self._interfaces.mtu(before.ifname) != before.mtu:
                self._interfaces.set_mtu(before.ifname, before.mtu)
            if before.up != self._interfaces.is_up(before.ifname):
                self._interfaces.set_link_up(before.ifname, on=before.up)
            if (before.network or before.moving) and before.addresses:
                done = rtnetlink.ask(rtnetlink.RestoreRequest(before.ifname, before.addresses))
                if done.refused:
                    raise RetryableError(f"{before.ifname}: {done.refused}", where=f"device {device}")
        except OSError as error:
            raise RetryableError(
                f"{now} cannot be restored: {error.strerror}",
                where=f"device {device}",
                hint=f"check `ip link show {now}`; the agent retries",
            ) from error

    def _reset(self, device: str, now: str, before: OriginalInterface) -> None:
        """Restore what the container changed on an interface; RetryableError if a part must not stay."""
        done = rtnetlink.ask(rtnetlink.Reset(now, before.link or rtnetlink.Link(before.hardware_address)))
        extra = {"device": device, "interface": before.ifname}
        if done.changed:
            log.info("interface restored", extra={**extra, "changed": "; ".join(done.changed)})
        if done.doubts:
            log.warning("interface may not be fully restored", extra={**extra, "reason": "; ".join(done.doubts)})
        if done.refused:
            raise RetryableError(
                f"{before.ifname}: {done.refused}", where=f"device {device}", hint="remove it; the agent retries"
            )

    def _back(self, device: str, before: OriginalInterface, deadline: Deadline) -> str | None:
        """Wait until the interface is on the host, and return its current name; None if its NIC was removed."""
        until = deadline.capped(self._patience)
        while True:
            if self._interfaces.of(before.address) is None:
                return None
            name = self._interfaces.find(before.address, before.ifname, before.interface.name)
            if name is not None:
                return name
            if not until.remaining():
                raise RetryableError(
                    f"its interface {before.ifname} has not returned from the container",
                    where=f"device {device}",
                    hint="stop the processes in its network namespace (`lsns -t net`)",
                )
            time.sleep(_LOOK)
