"""Device setup of passthrough: binds devices to vfio-pci at prepare, and restores their drivers on release."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import msgspec

from dra_agent._native import is_vfio_driver
from dra_agent.cdi.edits.provider import node_edits
from dra_agent.cdi.model import ContainerEdits
from dra_agent.claimable.network import HostNetwork
from dra_agent.deadline import Deadline
from dra_agent.device_setup.sysfs_writer import TIMEOUT_S, SysfsWriter, TimedWriter
from dra_agent.device_setup.vendor import DriverLibrary
from dra_agent.device_setup.vfio import setup
from dra_agent.device_setup.vfio.binding import Binding
from dra_agent.device_setup.vfio.pci_functions import DRIVER, PciFunctions, check_group, require_idle, require_released
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.inventory.passthrough import PASSTHROUGH, VfioBinding, VfioBindingStore
from dra_agent.prepare.locks import SETUP_TIMEOUT_S, setup_locks
from dra_agent.prepare.setup import API_VERSION, Kind, SetupDevice, SetupOutcome, UnsuitableError

Interface = Literal["auto", "legacy", "iommufd"]


class VfioConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a passthrough device while the claim has it."""

    iommu: Interface = "auto"
    """IOMMU interface: group (/dev/vfio/GROUP), iommufd (/dev/iommu), or the one that the host has."""


CONTAINER, IOMMU = "/dev/vfio/vfio", "/dev/iommu"
NODE_TIMEOUT_S = 5.0
"""Maximum seconds for udev to create a device node."""
_POLL_INTERVAL_S = 0.02
"""Seconds between two checks for a device node, which udev creates."""


def edits(
    host: Host, functions: PciFunctions, address: str, group: int, interface: Interface, deadline: Deadline
) -> ContainerEdits:
    """Return the edits for one function.

    Raises:
        PermanentError: The host does not have the requested interface.
        RetryableError: The device nodes do not exist at the deadline.
    """
    where = f"device {address}"
    deadline = deadline.capped(NODE_TIMEOUT_S)
    while True:
        legacy = (f"/dev/vfio/{group}", CONTAINER)
        device = functions.vfio_device(address)
        iommufd = (f"/dev/vfio/devices/{device}", IOMMU) if device is not None else ()
        has_legacy = _exist(host, legacy)
        has_iommufd = bool(iommufd) and _exist(host, iommufd)
        if {"auto": has_legacy or has_iommufd, "legacy": has_legacy, "iommufd": has_iommufd}[interface]:
            break
        if interface == "iommufd" and not host.dev_path(IOMMU).exists():
            raise PermanentError(
                "iommu: this host has no /dev/iommu", where=where, hint='load iommufd, or set iommu "auto"'
            )
        if not deadline.remaining():
            raise RetryableError(
                f"its device nodes are missing: {legacy[0]}, or {'/dev/vfio/devices/vfioN'} with {IOMMU}",
                where=where,
                hint="check udev and the kernel log (dmesg)",
            )
        time.sleep(_POLL_INTERVAL_S)
    nodes: tuple[str, ...] = ()
    if interface in ("auto", "legacy") and has_legacy:
        nodes += legacy
    if interface in ("auto", "iommufd") and has_iommufd:
        nodes += iommufd
    return node_edits([(node, str(host.dev_path(node))) for node in nodes], device=address)


def _exist(host: Host, paths: tuple[str, ...]) -> bool:
    return all(host.dev_path(path).exists() for path in paths)


log = logging.getLogger(__name__)


def _is_bound_by_operator(device: Device) -> bool:
    return PASSTHROUGH not in device.identity and any(node.role == "vfio" for node in device.nodes)


class VfioSetup:
    """Binds and unbinds devices; thread-safe."""

    kind: Kind = (API_VERSION, "VfioConfig")
    parameters = VfioConfig

    def __init__(
        self,
        host: Host,
        kernel: SysfsWriter,
        state_dir: Path,
        *,
        libraries: Sequence[DriverLibrary] = (),
        deadline: float = TIMEOUT_S,
        bindings: VfioBindingStore | None = None,
    ) -> None:
        """`libraries` are closed while functions of their drivers are bound; `bindings` are those of `state_dir`.

        `deadline` in seconds is for each access to the kernel.
        """
        self._host = host
        self._accesses = TimedWriter(kernel, deadline)
        self._functions = PciFunctions(host, self._accesses)
        self._binding = Binding(self._functions, self._accesses)
        self._bindings = bindings or VfioBindingStore(state_dir)
        self._libraries = {library.driver: library for library in libraries}
        self._network = HostNetwork(host)
        self._locks = setup_locks(state_dir, "vfio")

    def default(self, device: Device) -> VfioConfig | None:
        """Bind devices that the operator's rules select for passthrough, with or without parameters.

        Those that the operator has bound are only checked.
        """
        return VfioConfig() if PASSTHROUGH in device.identity or _is_bound_by_operator(device) else None

    def check(self, device: Device, parameters: VfioConfig) -> None:
        """Accept passthrough devices only; raises UnsuitableError for others.

        Parameters do not convert a GPU that is published for containers.
        """
        if PASSTHROUGH not in device.identity:
            raise UnsuitableError(
                f"kind: {self.kind[1]} is for devices that inventory.passthrough selects, and this is not one"
            )

    def set_up(
        self, uid: str, devices: Sequence[SetupDevice], parameters: VfioConfig, previous: Any, deadline: Deadline
    ) -> SetupOutcome:
        """Bind the devices that a rule selects, after checking all groups; a repeat binds them again.

        All others are the operator's: they have to be bound, also after a restart of the host, and the inventory has
        their nodes.
        """
        claimed = {item.device.pci_address: item for item in devices}
        recorded = {one.key: one for one in msgspec.convert(previous or [], list[VfioBinding])}
        # Without its state file, a device that is bound for the claim is described like one of the operator.
        own = {
            address: item
            for address, item in claimed.items()
            if PASSTHROUGH in item.device.identity or item.key in recorded
        }
        with self._hold(claimed, uid, deadline):
            groups = {address: self._checked(uid, item, claimed) for address, item in claimed.items()}
            for address in claimed.keys() - own.keys():
                self._require_bound_by_operator(claimed[address], address)
                if previous is None:
                    require_released(
                        self._functions, self._host, address, f"device {claimed[address].device.name}", deadline
                    )
            for address, item in own.items():
                deadline.check(f"device {item.device.name}")
                self._bind(uid, item, address, recorded.get(item.key), deadline)
        edits = {
            item.key: setup.edits(self._host, self._functions, address, groups[address], parameters.iommu, deadline)
            for address, item in own.items()
        }
        return SetupOutcome([msgspec.to_builtins(one) for one in self._of(uid, list(edits))], edits)

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        """Restore the drivers; from the ledger if the state file of a device was lost."""
        stored = {one.address: one for one in self._of(uid, keys)}
        for recorded in msgspec.convert(record or [], list[VfioBinding]):
            stored.setdefault(recorded.address, recorded)
        for binding in stored.values():
            if binding.key in keys:
                self._unbind(binding, deadline)

    def roll_back(self, uid: str, keys: Sequence[str], parameters: VfioConfig, deadline: Deadline) -> None:
        """Restore the drivers of started bindings: they are on disk before a driver is changed."""
        for binding in self._of(uid, keys):
            self._unbind(binding, deadline)

    def noted(self, uid: str) -> Sequence[str]:
        """Return the keys of the devices that the claim has, or is about to have."""
        return [one.key for one in self._bindings.all().values() if one.uid == uid]

    def _checked(self, uid: str, item: SetupDevice, claimed: dict[str, SetupDevice]) -> int:
        """Check whether a device may be bound, before any is; return its group."""
        address, where = item.device.pci_address, f"device {item.device.name}"
        self._accesses.check(address)
        if not self._functions.exists(address):
            raise RetryableError("it is not on the bus", where=where, hint="reinsert it")
        bindings = self._bindings.all()
        others = {other: one.uid for other, one in bindings.items() if one.uid != uid}
        return check_group(self._functions, address, claimed, others, where)

    def _require_bound_by_operator(self, item: SetupDevice, address: str) -> None:
        """Reject a function without a rule that the operator has taken back, or has not bound in this boot."""
        driver = self._functions.driver(address)
        if driver is None or not is_vfio_driver(driver):
            bound = "no driver" if driver is None else f"driver {driver}"
            raise RetryableError(
                f"it has {bound} and was published with {DRIVER}",
                where=f"device {item.device.name}",
                hint=f"bind it to {DRIVER} again, as no rule of inventory.passthrough selects it; the agent retries",
            )

    def _bind(
        self, uid: str, item: SetupDevice, address: str, recorded: VfioBinding | None, deadline: Deadline
    ) -> None:
        """Bind a function; `recorded` has its original driver if its state file was lost."""
        where = f"device {item.device.name}"
        driver = self._functions.driver(address)
        stored = self._bindings.read(address)
        library = self._libraries.get(driver or "")
        if library is not None and (users := library.users(address)):
            raise RetryableError(
                f"processes compute on it: {', '.join(map(str, users[:5]))}",
                where=where,
                hint="stop them; the agent retries",
            )
        with nullcontext() if library is None else library.released():
            if driver != DRIVER:
                require_idle(self._functions, self._host, self._network, item.device, address, where, deadline)
            if stored is None:
                before = self._functions.override(address)
                stored = recorded or VfioBinding(address, uid, item.key, driver, before, item.device)
                self._bindings.write(stored)
            elif (stored.uid, stored.key) != (uid, item.key):
                # The ledger allocates a device to one claim at a time: the previous claim holds nothing any more.
                log.warning("taken over from a former claim", extra={"device": item.device.name, "was": stored.uid})
                stored = msgspec.structs.replace(stored, uid=uid, key=item.key)
                self._bindings.write(stored)
            self._binding.bind(address, where)
            # From now on it is unhealthy without this driver.
            self._note_boot(stored, self._host.boot_id())

    def _unbind(self, binding: VfioBinding, deadline: Deadline) -> None:
        address, where = binding.address, f"device {binding.device.name}"
        with self._hold([address], binding.uid, deadline):
            self._accesses.check(address)
            if self._functions.driver(address) == DRIVER and binding.driver != DRIVER:
                require_released(self._functions, self._host, address, where, deadline)
            if (stored := self._bindings.read(address)) is not None:
                self._note_boot(stored, "")
            self._binding.restore(binding, where)
            self._bindings.forget(address)

    def _note_boot(self, binding: VfioBinding, boot_id: str) -> None:
        if binding.boot_id != boot_id:
            self._bindings.write(msgspec.structs.replace(binding, boot_id=boot_id))

    def _of(self, uid: str, keys: Sequence[str]) -> list[VfioBinding]:
        return [one for one in self._bindings.all().values() if one.uid == uid and one.key in keys]

    @contextmanager
    def _hold(self, addresses: Sequence[str] | dict[str, SetupDevice], uid: str, deadline: Deadline) -> Iterator[None]:
        """Lock the functions and their groups: two claims must not check one group and then both bind it."""
        groups = {f"group {self._functions.group(address)}" for address in addresses}
        with self._locks.hold([*addresses, *groups], deadline.capped(SETUP_TIMEOUT_S), f"claim {uid}"):
            yield
