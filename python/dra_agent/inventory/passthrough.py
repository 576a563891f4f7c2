"""Publishes whole functions for virtual machines and user space drivers, by the operator's rules.

Such a device always has type "vfio": a class for GPUs never selects it, and
binding it to vfio-pci does not change its published description.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent._native import is_vfio_driver
from dra_agent.diagnostic import Diagnostic
from dra_agent.errors import AgentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.api import Attribute
from dra_agent.inventory.evaluation import Rule, RuleResult, RuleResults
from dra_agent.inventory.model import NOT_CLAIMABLE, Device, Exclusion, ObservedIssue
from dra_agent.inventory.moved import MovedInterfaces
from dra_agent.inventory.settings import PassthroughRule
from dra_agent.inventory.sysfs import SysfsDir
from dra_agent.json_decode import decode_json
from dra_agent.processes.visibility import hidden_processes_reason, permission_hint
from dra_agent.topology.model import PciFunction, Topology

log = logging.getLogger(__name__)

_MAX_BYTES = 1 << 20
_NAME = re.compile(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\.json")


class VfioBinding(msgspec.Struct, frozen=True):
    """One function that a claim has, or is about to have, through vfio-pci."""

    address: str
    uid: str
    """Of the claim."""
    key: str
    """Key of the device within the claim."""
    driver: str | None
    """The driver that it goes back to; None: it had none."""
    override: str | None
    """Its earlier `driver_override`; None: empty."""
    device: Device
    """As it was published."""
    boot_id: str = ""
    """The boot in which vfio-pci has it; "" until then, and from the moment at which its driver is restored."""


class VfioBindingStore:
    """The files of one state directory; a writer holds the lock of the function."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "vfio"
        self.moved = MovedInterfaces(state_dir)

    def all(self) -> dict[str, VfioBinding]:
        """Return the bindings by PCI address. Raises RetryableError if the directory cannot be read.

        An unusable file is quarantined. A user without permission for the folder gets
        none, and sees functions as the kernel shows them.
        """
        found = ((address, self.read(address)) for address in self.addresses())
        return {address: binding for address, binding in found if binding is not None}

    def addresses(self) -> list[str]:
        """Return the addresses of all bindings without reading them; the errors of `all`."""
        try:
            names = sorted(path.name for path in self.folder.iterdir())
        except (FileNotFoundError, PermissionError):
            return []
        except OSError as error:
            raise self._error(self.folder, "cannot be read", error) from error
        return [match[1] for name in names if (match := _NAME.fullmatch(name))]

    def read(self, address: str) -> VfioBinding | None:
        """Return the binding of one function, or None; raises RetryableError if its file is unreadable.

        Its device has no health: an old observation is not valid while a claim holds it.
        """
        path = self.path(address)
        try:
            binding = decode_json(atomic_file.read(path, _MAX_BYTES), type=VfioBinding)
            if binding.address != address:
                raise msgspec.ValidationError(f"it is about {binding.address}")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(path, "cannot be read", error) from error
        except (msgspec.DecodeError, ValueError) as error:
            aside = atomic_file.quarantine(path)
            log.error("the saved state of a function before its binding is damaged", extra={"file": str(aside)})
            log.error("damage", extra={"reason": str(error)})
            return None
        return msgspec.structs.replace(binding, device=_not_observed(binding.device))

    def write(self, binding: VfioBinding) -> None:
        """Store a binding; durable on return. Raises RetryableError if the disk refuses it."""
        path = self.path(binding.address)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_file.write(path, msgspec.json.encode(binding), durable=True)
        except OSError as error:
            raise self._error(path, "cannot be written", error) from error

    def forget(self, address: str) -> None:
        """Delete the binding of a function that was restored or permanently removed; raises RetryableError."""
        path = self.path(address)
        try:
            atomic_file.remove(path, durable=True)
        except OSError as error:
            raise self._error(path, "cannot be removed", error) from error

    def path(self, address: str) -> Path:
        """Return the file of a function. Raises ValueError for what is not a PCI address."""
        name = f"{address}.json"
        if not _NAME.fullmatch(name):
            raise ValueError(f"{address!r} is not a PCI address")
        return self.folder / name

    def _error(self, path: Path, message: str, error: OSError) -> RetryableError:
        return RetryableError(f"{message}: {error.strerror}", where=str(path), hint="check its disk and its owner")


def _not_observed(device: Device) -> Device:
    return msgspec.structs.replace(
        device,
        taints=(),
        health="healthy",
        health_reason=None,
        issues=(),
        memory_errors=None,
        corrected_errors=None,
        observed=False,
    )


DRIVER = "vfio-pci"
PASSTHROUGH = "passthrough"
"""The key of the identity by which a device of this kind is known; its value is the PCI address."""

_OF_THE_DRIVER = frozenset(
    {
        "driverVersion",
        "cudaDriverVersion",
        "ifName",
        "mac",
        "mtu",
        "state",
        "linkSpeed",
        "linkType",
        "rdma",
        "rdmaDevice",
        "ibSubnetPrefix",
        "ibPortGUID",
        "interconnectGroup",
        "interconnectWidth",
        "portCount",
        "sriovVfs",
    }
)
"""Attributes that a device has of the driver that it is about to lose, or that change while it works."""
_KEPT_IDENTITY = frozenset({"uuid", "minor", "parent", "host_use", "host_address"})


class Passthrough:
    """The passthrough rules of one configuration, compiled. UsageError where one can never work."""

    def __init__(
        self, host: Host, rules: Sequence[PassthroughRule], driver: str, bindings: VfioBindingStore | None
    ) -> None:
        """`bindings`: bindings of claims; None if nothing is bound here."""
        self._host = host
        self._driver = driver
        self._rules = [Rule(f"passthrough[{number}].when", rule.when) for number, rule in enumerate(rules)]
        self._results = RuleResults(self._rules)
        self._bindings = bindings
        self._boot_id = host.boot_id()

    def bound(self, problems: list[Diagnostic]) -> dict[str, Device]:
        """Return the devices of claims, as published, by address; those that have lost vfio-pci are unhealthy."""
        found: dict[str, Device] = {}
        if self._bindings is None:
            return found
        try:
            addresses = self._bindings.addresses()
        except AgentError as error:
            problems.append(Diagnostic(error.where or "passthrough", error.message, error.hint))
            return found
        for address in addresses:
            try:
                if (binding := self._bindings.read(address)) is not None:
                    found[address] = self._held(binding, self._bindings)
            except AgentError as error:
                problems.append(Diagnostic(error.where or "passthrough", error.message, error.hint))
        return found

    def _held(self, binding: VfioBinding, bindings: VfioBindingStore) -> Device:
        if binding.boot_id != self._boot_id:
            return binding.device
        # Read now: the scan may be older than the binding.
        folder = self._host.sysfs / "bus/pci/devices" / binding.address
        driver = SysfsDir(folder, []).link("driver")
        # A variant driver of vfio serves the same node. A set-up that has begun to restore the driver has recorded it.
        if (driver is not None and is_vfio_driver(driver)) or bindings.read(binding.address) != binding:
            return binding.device
        message = f"{driver or 'no driver'} has it, and its claim needs {DRIVER}"
        return msgspec.structs.replace(
            binding.device,
            health="unhealthy",
            health_reason=message,
            issues=(ObservedIssue(NOT_CLAIMABLE, message),),
        )

    def with_new_bindings(
        self, devices: Iterable[Device], bound: Collection[str], problems: list[Diagnostic]
    ) -> list[Device]:
        """Return the devices, with the published form for devices that were bound after `bound` was read.

        Later results of vendor libraries for them are invalid.
        """
        devices = list(devices)
        present = {device.pci_address for device in devices} - set(bound)
        now = {address: device for address, device in self.bound(problems).items() if address in present}
        if not now:
            return devices
        names = {device.name for device in devices if device.pci_address in now}
        problems[:] = [problem for problem in problems if problem.where not in names]
        return [device for device in devices if device.pci_address not in now] + list(now.values())

    def apply(
        self,
        devices: Iterable[Device],
        topology: Topology,
        problems: list[Diagnostic],
        excluded: list[Exclusion],
    ) -> list[Device]:
        """Return the devices; those that a rule matches are offered for vfio-pci, or left out if that is impossible."""
        if not self._rules:
            return list(devices)
        found = self._results.evaluate(devices, lambda device: self._apply_rules(device, topology))
        problems += found.problems
        excluded += found.excluded
        # A command without root does not bind, and sees less than the agent.
        binds = os.geteuid() == 0 and any(PASSTHROUGH in device.identity for device in found.published)
        if binds and (blind := hidden_processes_reason(self._host)):
            message = (
                f"devices with nodes are not bound to vfio-pci, because a hidden process may have them open: {blind}"
            )
            problems.append(Diagnostic("inventory.passthrough", message, permission_hint()))
        return found.published

    def _apply_rules(self, device: Device, topology: Topology) -> RuleResult:
        # All rules are evaluated, so that one without a value for any device is detected.
        matching = [rule for rule in self._rules if rule.matches(self._driver, device)]
        if not matching or PASSTHROUGH in device.identity or device.attributes["type"].value == "vfio":
            return RuleResult(device)
        reason = _reason_not_to(device, topology.by_address[device.pci_address])
        if reason is None:
            return RuleResult(_passed_through(device))
        message, hint = reason
        where = f"inventory.{matching[0].where}"
        return RuleResult(
            None,
            [Diagnostic(device.name, f"cannot be passed through, as {where} requires: {message}", hint)],
            [Exclusion(device.name, f"{where} requires it for vfio-pci, and {message}", "passthrough")],
        )


def _reason_not_to(device: Device, function: PciFunction) -> tuple[str, str] | None:
    if function.iommu_group is None:
        return "the IOMMU is off", "switch it on in the firmware and on the kernel's command line (intel_iommu=on)"
    is_vf = function.physfn is not None
    if not is_vf and ("parent" in device.identity or device.consumes_counters):
        return "it is offered in partitions", "let the rule match other devices than inventory.partition"
    if function.sriov is not None and function.sriov.num_vfs > 0:
        return "it has virtual functions, which would go with its driver", "pass those through, or remove them"
    return None


def _passed_through(device: Device) -> Device:
    attributes = {name: value for name, value in device.attributes.items() if name not in _OF_THE_DRIVER}
    identity = {name: value for name, value in device.identity.items() if name in _KEPT_IDENTITY}
    return msgspec.structs.replace(
        device,
        attributes={**attributes, "type": Attribute.of("vfio"), "driver": Attribute.of(DRIVER)},
        nodes=(),  # nodes of vfio-pci are added at prepare
        identity={**identity, PASSTHROUGH: device.pci_address},
    )
