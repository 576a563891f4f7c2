"""Device setup of network adapters: the hook that requests the move, the MTU, and the restore after them."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dra_agent.cdi.claim import env_name
from dra_agent.cdi.model import ContainerEdits
from dra_agent.claimable.network import HostNetwork, UnknownUseError
from dra_agent.deadline import Deadline
from dra_agent.device_setup import rtnetlink
from dra_agent.device_setup.container_hook import ContainerHook
from dra_agent.device_setup.interface_use import may_have_address, refuse_published_use, refuse_use
from dra_agent.device_setup.link import Link
from dra_agent.device_setup.net.interfaces import Interfaces, shown
from dra_agent.device_setup.net.mover import TASK, InterfaceMover
from dra_agent.device_setup.net.parameters import MAX_STATE_BYTES, InterfaceConfig, NicConfig, OriginalInterface
from dra_agent.device_setup.open_files import DeviceNode, class_node, require_unused
from dra_agent.device_setup.state_files import StateFiles
from dra_agent.device_setup.sysfs_writer import SysfsWriter
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.addresses import addresses
from dra_agent.inventory.model import Device
from dra_agent.inventory.moved import INTERFACE_ATTRIBUTES
from dra_agent.netdevice import is_of_device
from dra_agent.prepare.locks import SETUP_TIMEOUT_S, setup_locks
from dra_agent.prepare.setup import API_VERSION, Kind, SetupDevice, SetupOutcome, UnsuitableError
from dra_agent.processes.visibility import hidden_processes_reason

log = logging.getLogger(__name__)

RETURN_TIMEOUT_S = 3.0
"""Maximum seconds for an interface to return: the kernel removes a network namespace after its last process."""
_POLL_INTERVAL_S = 0.05
_IPV6_MIN_MTU = 1280
"""Bytes; interfaces with less have no IPv6 (IPV6_MIN_MTU, linux/ipv6.h)."""


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
        kernel: SysfsWriter,
        return_timeout_s: float = RETURN_TIMEOUT_S,
    ) -> None:
        """`host_folder` has the same path for runtimes: it contains hook and socket. `kernel` takes writes to /sys."""
        self._host = host
        self._return_timeout_s = return_timeout_s
        self.hook = ContainerHook(host_folder)
        self.interfaces = Interfaces(host.sysfs, kernel)
        self._originals = StateFiles(state_dir / "net", OriginalInterface, max_bytes=MAX_STATE_BYTES)
        self._network = HostNetwork(host)
        self._locks = setup_locks(state_dir, "net")
        self.mover = InterfaceMover(self.interfaces, self._originals, self._locks, return_timeout_s)

    def hook_tasks(self) -> Mapping[str, Callable[[bytes], bool]]:
        """See dra_agent.prepare.setup.HookHandler."""
        return {TASK: self.mover.move}

    def default(self, device: Device) -> None:
        """Change nothing without parameters."""

    def check(self, device: Device, parameters: NicConfig) -> None:
        """Accept NICs with an interface that the host does not need.

        Raises:
            UnsuitableError: The device is not such a NIC.
            PermanentError: The parameters do not fit the device.
        """
        if device.family != "nic":
            raise UnsuitableError(f"kind: {self.kind[1]} is for NICs, not for a {device.family}")
        if not device.identity.get("ifname"):
            raise PermanentError(
                "interface: the device has none on this host", hint="choose another NIC, or leave interface out"
            )
        if parameters.interface != InterfaceConfig():
            refuse_published_use(device, "interface: ")
        if self._host.net is not None:
            raise PermanentError(
                "interface: the agent has its own network namespace and cannot change the host's",
                hint="run it as a host service, or with hostNetwork and privileged",
            )
        if parameters.interface.name is not None and (hidden := hidden_processes_reason(self._host)):
            raise PermanentError(
                f"interface.name: a container's network is found by one of its processes, and {hidden}",
                hint="run it with systemd/net.conf, or with hostPID, hostNetwork and privileged; or leave the name out",
            )

    def set_up(
        self, uid: str, devices: Sequence[SetupDevice], parameters: NicConfig, previous: Any, deadline: Deadline
    ) -> SetupOutcome:
        """Add the hook to containers, or set the MTU of an interface that stays on the host.

        An interface with a name gets its MTU in the container. Raises PermanentError if one name is requested for
        several interfaces, or the host uses one.
        """
        desired = parameters.interface
        if desired.name is not None and len(devices) > 1:
            names = ", ".join(item.device.name for item in devices)
            raise PermanentError(
                f"interface.name: {desired.name} would name {len(devices)} interfaces ({names})",
                hint="put each device in a separate request with its own configuration",
            )
        edits: dict[str, ContainerEdits] = {}
        record: dict[str, str] = {}
        if desired == InterfaceConfig():
            return SetupOutcome(record, edits)
        for item in devices:
            with self._locks.hold([item.device.name], deadline.capped(SETUP_TIMEOUT_S), f"claim {uid}"):
                original = self._original(uid, item, desired, deadline)
                record[item.key] = original.ifname
                present = self.interfaces.of(original.address)
                if desired.name is None and desired.mtu is not None and original.ifname in (present or ()):
                    self._set_mtu(item.device.name, original.ifname, desired.mtu)
            if desired.name is not None:
                self.hook.install()
                variable = f"DRA_AGENT_DEVICE_{env_name(item.device.name)}_IFNAME={desired.name}"
                hook_edits = self.hook.request_edits(uid, item.key, "--task", TASK)
                edits[item.key] = ContainerEdits(env=(variable,)).merged(hook_edits)
        return SetupOutcome(record, edits)

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        """Restore each interface; RetryableError while it has not returned."""
        for key in keys:
            name = key.partition("/")[0]
            with self._locks.hold([name], deadline.capped(SETUP_TIMEOUT_S), f"claim {uid}"):
                original = self._originals.read(name)
                if original is None or original.uid != uid:
                    continue
                self._restore(name, original, deadline)
                self._originals.delete(name)

    def roll_back(self, uid: str, keys: Sequence[str], parameters: NicConfig, deadline: Deadline) -> None:
        """Do the same: the original state of an interface is on disk before a change."""
        self.tear_down(uid, keys, None, deadline)

    def noted(self, uid: str) -> Sequence[str]:
        """Return the names of the devices whose interfaces the claim has."""
        return [name for name, original in self._originals.all().items() if original.uid == uid]

    def _original(self, uid: str, item: SetupDevice, desired: InterfaceConfig, deadline: Deadline) -> OriginalInterface:
        device = item.device.name
        original = self._originals.read(device)
        # After a restart of the host the interface is as the host configures it.
        if original is not None and original.uid == uid and original.boot in ("", self._host.boot_id()):
            if original.interface != desired:  # recorded by an agent that saved less
                original = msgspec.structs.replace(original, interface=desired)
                self._originals.write(device, original)
            return original
        ifname = item.device.identity.get("ifname")
        # Another device may have the name by now.
        if not ifname or ifname not in (self.interfaces.of(item.device.pci_address) or ()):
            missing = "its interface" if not ifname else f"its interface {ifname}"
            raise RetryableError(f"{missing} is not on the host", where=f"device {device}", hint="the agent retries")
        refuse_use(self._network, [ifname], item.device, f"device {device}", "interface: ")
        if desired.name is not None:
            # The kernel removes the GIDs of an interface that leaves the host, also those that a process uses.
            verbs = _verbs(self._host, item.device)
            require_unused(self._host, verbs, f"device {device}", deadline, "interface.name", drop_in="net.conf")
        if desired.name is None and desired.mtu is not None and desired.mtu < _IPV6_MIN_MTU:
            use = self._network.present_use(ifname, f"device {device}")
            if use is not None:
                # The kernel removes those of IPv6, and does not restore them with the MTU.
                raise PermanentError(
                    f"interface.mtu: {desired.mtu} is less than {_IPV6_MIN_MTU}, and the host uses it: {use.reason}",
                    where=f"device {device}",
                    hint="request a larger MTU, or move the interface into the pod (interface.name)",
                )
        try:
            mtu, up = self.interfaces.mtu(ifname), self.interfaces.is_up(ifname)
            hardware, port = self.interfaces.hardware_address(ifname), self.interfaces.port(ifname)
            given = addresses(ifname, hardware, permanent=True) if desired.name is not None else ()
        except (OSError, ValueError) as error:
            raise RetryableError(f"{ifname} cannot be read: {error}", where=f"device {device}") from error
        attributes = item.device.attributes
        described = {name: attributes[name] for name in INTERFACE_ATTRIBUTES if name in attributes}
        link = self._describe(device, ifname, hardware, desired) if desired.name is not None else None
        original = OriginalInterface(
            uid,
            item.device.pci_address,
            ifname,
            mtu,
            up,
            hardware,
            port,
            given,
            link,
            described,
            desired,
            may_have_address=may_have_address(item.device),
            boot_id=self._host.boot_id(),
        )
        self._originals.write(device, original)
        return original

    def _describe(self, device: str, ifname: str, hardware: str, desired: InterfaceConfig) -> Link | None:
        """Return the properties that only rtnetlink shows; None if the interface is not the one in /sys.

        Raises PermanentError if the adapter does not support the MTU, which it gets in the container.
        """
        if not is_of_device(ifname, hardware):
            return None
        interface = rtnetlink.HostInterface(self.interfaces.index(ifname), hardware)
        found = rtnetlink.query(rtnetlink.Describe(interface, ifname, os.fspath(self.interfaces.folder)))
        if found.refused:
            raise RetryableError(
                f"interface.name: {ifname}: {found.refused}",
                where=f"device {device}",
                hint="remove what it names, or request another device; the agent retries",
            )
        if found.link is None:
            # What is not recorded cannot be compared when it returns.
            raise RetryableError(
                f"{ifname} was replaced while it was read", where=f"device {device}", hint="the agent retries"
            )
        if found.link.xdp:
            raise RetryableError(
                f"interface: the host uses it: {ifname} has an XDP program of the host",
                where=f"device {device}",
                hint=f"remove it (`ip link set {ifname} xdp off`), or request another device; the agent retries",
            )
        smallest, largest = found.mtu_range or (0, 0)
        if desired.mtu is not None and (desired.mtu < smallest or (largest and desired.mtu > largest)):
            raise _unsupported_mtu(device, ifname, desired.mtu, os.strerror(errno.EINVAL))
        return found.link

    def _set_mtu(self, device: str, ifname: str, mtu: int) -> None:
        try:
            if self.interfaces.mtu(ifname) != mtu:
                self.interfaces.set_mtu(ifname, mtu)
                log.info("MTU set", extra={"device": device, "interface": ifname, "mtu": mtu})
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ERANGE):
                raise _unsupported_mtu(device, ifname, mtu, str(error.strerror)) from error
            message = f"interface.mtu: {ifname} does not accept {mtu}: {error.strerror}"
            raise RetryableError(message, where=f"device {device}") from error

    def _restore(self, device: str, original: OriginalInterface, deadline: Deadline) -> None:
        """Undo what the claim and its containers changed; RetryableError if a part remains, on every retry."""
        if original.boot not in ("", self._host.boot_id()):
            return  # since the restart of the host it has what the host configures
        name = original.ifname
        differing: tuple[str, ...] = ()
        try:
            if original.has_moved:
                differing = self._restore_moved(device, original, deadline)
            elif (now := self._find(original)) is not None:
                name = now
                self._restore_mtu(device, original, name)
        except OSError as error:
            raise RetryableError(
                f"{shown(name)} cannot be restored: {error.strerror}",
                where=f"device {device}",
                hint=f"check `ip link show {shown(name)}`; the agent retries",
            ) from error
        if differing:
            raise RetryableError(
                f"{name} differs from before the claim: {'; '.join(differing)}",
                where=f"device {device}",
                hint="restore it; the claim keeps the NIC until then, and the agent retries",
            )

    def _restore_mtu(self, device: str, original: OriginalInterface, name: str) -> None:
        """Restore the MTU of an interface that stayed on the host, unless the host has changed or come to use it."""
        desired = original.interface
        if desired.name is not None or desired.mtu is None or self.interfaces.mtu(name) != desired.mtu:
            return
        try:
            use = self._network.present_use(name, f"device {device}")
        except UnknownUseError as error:
            reason = error.message
        else:
            reason = use.reason if use is not None and use.code == "host-interface" else ""
        if reason:
            extra = {"device": device, "interface": name, "mtu": desired.mtu, "reason": reason}
            log.warning("the MTU of the claim stays, the host may use the interface", extra=extra)
        else:
            self.interfaces.set_mtu(name, original.mtu)

    def _restore_moved(self, device: str, original: OriginalInterface, deadline: Deadline) -> tuple[str, ...]:
        """Restore an interface that a container may have had; return what could not be restored."""
        now = self._wait_until_returned(device, original, deadline)
        if now is None:
            log.warning("the NIC is missing, its interface is not restored", extra={"device": device})
            return ()
        name = original.ifname
        link = original.link or Link(original.hardware_address)  # an earlier agent recorded no more
        differing: tuple[str, ...] = ()
        if (interface := self._on_host(now)) is not None:
            reset = rtnetlink.Reset(interface, name, original.mtu, original.up, link)
            differing += self._changed(device, original, rtnetlink.query(reset))
        # A simulated host has no such link.
        if self.interfaces.mtu(name) != original.mtu:
            self.interfaces.set_mtu(name, original.mtu)
        if original.up != self.interfaces.is_up(name):
            self.interfaces.set_link_up(name, on=original.up)
        if (interface := self._on_host(name)) is not None:
            folder = os.fspath(self.interfaces.folder)
            restore = rtnetlink.RestoreRequest(interface, name, folder, original.addresses, link)
            differing += self._changed(device, original, rtnetlink.query(restore))
        return differing

    def _changed(self, device: str, original: OriginalInterface, done: rtnetlink.NetResult) -> tuple[str, ...]:
        """Log the result, and return what differs; RetryableError if a step was rejected."""
        if done.changed:
            extra = {"device": device, "interface": original.ifname, "changed": "; ".join(done.changed)}
            log.info("interface restored", extra=extra)
        if done.missing:
            extra = {"device": device, "interface": original.ifname, "missing": "; ".join(done.missing)}
            log.warning("routes of the interface are not restored", extra=extra)
        if done.refused:
            raise RetryableError(
                f"{original.ifname}: {done.refused}", where=f"device {device}", hint="repair it; the agent retries"
            )
        return done.differing

    def _on_host(self, name: str) -> rtnetlink.HostInterface | None:
        """Return the interface for a request to the kernel; None if only a simulated host has it."""
        try:
            index = self.interfaces.index(name)
        except OSError:
            return None
        return rtnetlink.HostInterface(index, self.interfaces.hardware_address(name))

    def _find(self, original: OriginalInterface) -> str | None:
        return self.interfaces.find(original.address, original.port, original.ifname, original.interface.name)

    def _wait_until_returned(self, device: str, original: OriginalInterface, deadline: Deadline) -> str | None:
        """Wait until the interface is on the host, and return its current name; None if its NIC was removed."""
        deadline = deadline.capped(self._return_timeout_s)
        while True:
            if self.interfaces.of(original.address) is None:
                return None
            name = self._find(original)
            if name is not None:
                return name
            if not deadline.remaining():
                raise RetryableError(
                    f"its interface {original.ifname} has not returned from the container",
                    where=f"device {device}",
                    hint="stop the processes in its network namespace (`lsns -t net`)",
                )
            time.sleep(_POLL_INTERVAL_S)


def _verbs(host: Host, device: Device) -> list[DeviceNode]:
    paths = [node.path for node in device.nodes if node.role == "uverbs"]
    return [class_node(host, "infiniband_verbs", path.rpartition("/")[2], path) for path in paths]


def _unsupported_mtu(device: str, ifname: str, mtu: int, reason: str) -> PermanentError:
    return PermanentError(
        f"interface.mtu: {ifname} does not accept {mtu}: {reason}",
        where=f"device {device}",
        hint="request a smaller MTU",
    )
