"""Offers whole functions to virtual machines and drivers in user space, as the operator's rules say.

Such a device has type "vfio" before a claim has it as well as after: a class that asks for a GPU never gets it, and
binding it to vfio-pci changes nothing of what is published.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from dra_agent.errors import AgentError
from dra_agent.host import Host
from dra_agent.inventory.api import Attribute
from dra_agent.inventory.model import Device, Diagnostic, Exclusion
from dra_agent.inventory.passthrough_bindings import VfioBindingStore
from dra_agent.inventory.process_visibility import TODO, hidden_processes_reason
from dra_agent.inventory.rules import Rule, encode, never_evaluated
from dra_agent.inventory.settings import PassthroughRule
from dra_agent.topology.model import PciFunction as Function

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
        "sriovVfs",
    }
)
"""Attributes that a device has of the driver that it is about to lose, or that change while it works."""
_KEPT_IDENTITY = frozenset({"uuid", "minor", "parent", "uplink"})


class Passthrough:
    """The passthrough rules of one configuration, compiled. UsageError where one can never work."""

    def __init__(
        self, host: Host, rules: Sequence[PassthroughRule], driver: str, handovers: VfioBindingStore | None
    ) -> None:
        """`handovers` tell what claims have; None: nobody binds anything here."""
        self._host = host
        self._driver = driver
        self._rules = [Rule(f"passthrough[{number}].when", rule.when) for number, rule in enumerate(rules)]
        self._handovers = handovers

    def handed_over(self, problems: list[Diagnostic]) -> dict[str, Device]:
        """Give the devices that claims have, as they were published, by address."""
        if self._handovers is None:
            return {}
        try:
            return {address: handover.device for address, handover in self._handovers.all().items()}
        except AgentError as error:
            problems.append(Diagnostic(error.where or "passthrough", error.message, error.hint))
            return {}

    def taken_meanwhile(
        self, devices: Iterable[Device], handed_over: Collection[str], problems: list[Diagnostic]
    ) -> list[Device]:
        """Give the devices, those as they were published that claims got after `handed_over` was read.

        What their vendors' libraries answered about them since is about devices that those no longer have.
        """
        devices = list(devices)
        present = {device.pci_address for device in devices} - set(handed_over)
        now = {address: device for address, device in self.handed_over(problems).items() if address in present}
        if not now:
            return devices
        names = {device.name for device in devices if device.pci_address in now}
        problems[:] = [problem for problem in problems if problem.where not in names]
        return [device for device in devices if device.pci_address not in now] + list(now.values())

    def apply(
        self,
        devices: Iterable[Device],
        functions: Mapping[str, Function],
        problems: list[Diagnostic],
        excluded: list[Exclusion],
    ) -> list[Device]:
        """Give the devices, those that a rule matches as ones for vfio-pci; what cannot be one is left out."""
        for rule in self._rules:
            rule.begin()
        if not self._rules:
            return list(devices)
        given = []
        for device in devices:
            encoded = encode(device)
            # Every rule is asked, so that one that has no value anywhere is noticed.
            matching = [rule for rule in self._rules if rule.matches(self._driver, encoded)]
            if not matching or PASSTHROUGH in device.identity or device.attributes["type"].value == "vfio":
                given.append(device)
                continue
            reason = _reason_not_to(device, functions[device.pci_address])
            if reason is None:
                given.append(_passed_through(device))
                continue
            what, hint = reason
            where = f"inventory.{matching[0].where}"
            excluded.append(Exclusion(device.name, f"{where} wants it for vfio-pci, and {what}"))
            problems.append(Diagnostic(device.name, f"cannot be passed through, as {where} wants: {what}", hint))
        # Who is not root binds nothing, and sees less than the agent does.
        binds = os.geteuid() == 0 and any(PASSTHROUGH in device.identity for device in given)
        if binds and (blind := hidden_processes_reason(self._host)):
            what = f"devices that have nodes are not given to vfio-pci, for somebody may have them open unseen: {blind}"
            problems.append(Diagnostic("inventory.passthrough", what, TODO))
        problems.extend(never_evaluated(self._rules))
        return given


def _reason_not_to(device: Device, function: Function) -> tuple[str, str] | None:
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
        nodes=(),  # those of vfio-pci come with the claim
        identity={**identity, PASSTHROUGH: device.pci_address},
    )
