"""Asks for each function of a host whether it may be claimed, and applies the rules by which an operator allows more.

`dra_agent.claimable` decides; this reads what it has to know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Sequence, Set
from typing import Generic, TypeVar

import msgspec

from dra_agent.claimable.decide import HostFacts, Refusal, platform_refusal, refusal
from dra_agent.claimable.divided import divisions
from dra_agent.claimable.drivers import RDMA_WITHOUT_INTERFACE
from dra_agent.claimable.iommu_groups import blocks_group
from dra_agent.claimable.network import HostNetwork
from dra_agent.claimable.use import host_use
from dra_agent.claimable.vendor_nodes import NO_NODES, vendor_nodes
from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.builder import pci_files
from dra_agent.inventory.evaluation import Rule, without_effect
from dra_agent.inventory.model import (
    HOST_USE,
    NOT_CLAIMABLE,
    RULE_ALLOWS,
    Device,
    Exclusion,
    Family,
    ObservedIssue,
    device_name,
)
from dra_agent.inventory.nic_ports import link_layers
from dra_agent.inventory.passthrough import PASSTHROUGH
from dra_agent.inventory.platform_devices import PlatformDevices
from dra_agent.inventory.products import fpga_companions, is_fpga_companion, is_fpga_management
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.user_nodes import driver_nodes
from dra_agent.inventory.vendors import GPU_VENDORS
from dra_agent.topology.model import CLAIMABLE, DeviceKind, PciFunction, Topology

_FAMILIES: dict[DeviceKind, Family] = {
    DeviceKind.GPU: "gpu",
    DeviceKind.NIC: "nic",
    DeviceKind.FPGA: "fpga",
    DeviceKind.ACCELERATOR: "accelerator",
}
_INTERFACE_USES = frozenset({"host-interface", "host-address"})
_OTHER_NETWORK = "0x0280"
"""Class of network controllers of no other kind; Wi-Fi adapters have it."""


_Fact = TypeVar("_Fact")


class _Kept(Generic[_Fact]):
    """What was read of functions: again after an event of one or below it, and where the scan has another object."""

    def __init__(self, read: Callable[[PciFunction], _Fact]) -> None:
        self._read = read
        self._known: dict[str, tuple[PciFunction, _Fact]] = {}

    def of(self, functions: Iterable[PciFunction], touched: Container[str] | None) -> dict[str, _Fact]:
        """Return it by PCI address; `touched` as of `Claimability.claimable`."""
        before, self._known = self._known, {}
        for one in functions:
            address = one.pci_address
            known = before.get(address)
            if known is None or known[0] is not one or touched is None or address in touched:
                known = one, self._read(one)
            self._known[address] = known
        return {address: fact for address, (_, fact) in self._known.items()}


class Claimability:
    """The claimable functions of one host, under one configuration. UsageError where a rule can never work."""

    def __init__(self, host: Host, network: HostNetwork, settings: InventorySettings, driver: str) -> None:
        self._host = host
        self._network = network
        self._platform_devices = PlatformDevices(host)
        self._driver = driver
        self._interface_rules = [
            Rule(f"host_interfaces[{number}]", rule) for number, rule in enumerate(settings.host_interfaces)
        ]
        self._display_rules = [Rule(f"displays[{number}]", rule) for number, rule in enumerate(settings.displays)]
        # The deprecated key.
        self._allows_interfaces = settings.host_uplink == "include"
        self._asked: dict[str, Refusal] = {}
        """By PCI address: why a function that is described may not be claimed, of the last call of `claimable`."""
        self._held: Set[str] = frozenset()
        self._divided = _Kept(lambda one: divisions(host.sysfs, one.pci_address))
        self._ethernet = _Kept(self._is_ethernet)
        self._physical: dict[str, str] = {}
        """By PCI address of a virtual function: the physical one."""

    def claimable(
        self,
        topology: Topology,
        touched: Container[str] | None,
        bound: Container[str],
        moved: Set[str],
        held: Collection[str],
        problems: list[Diagnostic],
        excluded: list[Exclusion],
    ) -> list[PciFunction]:
        """Return the functions to describe; add those to `excluded` that no rule may allow and no claim has.

        Parts of another device are among both: the whole is described with them.

        `touched`: addresses of functions with kernel events; None: everything is read again.
        `bound`: addresses that claims have bound to vfio-pci. `moved`: names of NICs whose interface claims have.
        `held`: names of all devices that claims have.
        """
        functions = [one for one in topology.relevant if one.kind in CLAIMABLE]
        names = frozenset(map(_whole, held))
        self._held = {one.pci_address for one in functions if _name(one) in names}
        self._physical = {one.pci_address: one.physfn for one in functions if one.physfn is not None}
        relevant = [one for one in functions if one.pci_address not in bound]
        facts = self._facts(topology, relevant, touched, moved, problems)
        self._asked = {}
        found = []
        for function in relevant:
            reason = refusal(function, facts)
            if reason is None:
                found.append(function)
            elif reason.by_rule or function.pci_address in self._held:
                self._asked[function.pci_address] = reason
                found.append(function)
            else:
                excluded.append(_exclusion(_name(function), function.pci_address, reason))
                if reason.code == "part-of-device":
                    found.append(function)
        excluded += [
            _exclusion(device_name(one.family, one.name), "", platform_refusal(one))
            for one in self._platform_devices.present(topology.relevant, problems)
        ]
        return found

    def allowed(self, devices: Sequence[Device], problems: list[Diagnostic], excluded: list[Exclusion]) -> list[Device]:
        """Return the devices that rules or claims keep: without those that the host needs otherwise.

        One that the host has come to use while a claim has it stays, with an issue.
        """
        asked = [device for device in devices if device.pci_address in self._asked]
        matched: dict[str, list[Rule]] = {}
        permitted, divided = set(), set(self._physical.values())
        for device in asked:
            given = self._asked[device.pci_address]
            rules = self._display_rules if given.code == "console" else self._interface_rules
            # All rules are evaluated, so that one without a value for any device is detected.
            matched[device.name] = [rule for rule in rules if rule.matches(self._driver, device)]
            by_older_key = (
                self._allows_interfaces and given.code in _INTERFACE_USES and device.pci_address not in divided
            )
            if given.by_rule and (matched[device.name] or by_older_key):
                permitted.add(device.pci_address)
        found = []
        for device in devices:
            address = device.pci_address
            reason = self._asked.get(address)
            if reason is None:
                found.append(device)
                continue
            # A rule for the physical function allows claims of both, and no use of the virtual one by the host.
            is_permitted = address in permitted or (
                reason.code == "physical-function" and self._physical.get(address) in permitted
            )
            identity = self._limits(address, reason) if is_permitted else {"host_use": reason.reason}
            # Binding it to vfio-pci would take it from the host.
            is_useless = PASSTHROUGH in device.identity and bool(identity) and reason.code != "console"
            if (is_permitted or reason.is_shared) and not is_useless:
                found.append(msgspec.structs.replace(device, identity={**device.identity, **identity}))
            elif address in self._held:
                found.append(_with_issue(device, reason))
            else:
                excluded.append(_exclusion(device.name, address, reason))
        effective = {rule.where for rules in matched.values() for rule in rules}
        for rules, family in ((self._interface_rules, "nic"), (self._display_rules, "gpu")):
            unused = [rule for rule in rules if rule.where not in effective]
            own = {device.name: device for device in devices if device.family == family}
            problems += without_effect(unused, self._driver, own)
        return found

    def _limits(self, address: str, reason: Refusal) -> dict[str, str]:
        """Return the identity by which set-ups know what a claim may change of a device that a rule permits."""
        if reason.code == "physical-function" and address in self._physical:
            return {"host_use": reason.host_use} if reason.host_use else {}
        if reason.code == "console":
            return {"host_use": reason.reason}
        # An address is all that a claim would take from the host, and the operator allows it.
        limit = {"host_address": "allowed"} if reason.code == "host-address" else {"host_use": reason.reason}
        return {**limit, RULE_ALLOWS: "host_interfaces"}

    def _facts(
        self,
        topology: Topology,
        functions: Sequence[PciFunction],
        touched: Container[str] | None,
        moved: Set[str],
        problems: list[Diagnostic],
    ) -> HostFacts:
        of_nics = [name for one in functions if one.kind is DeviceKind.NIC for name in one.net]
        view = self._network.view(problems) if of_nics else None
        uses = {name: use for name in of_nics if view is not None and (use := host_use(view, name)) is not None}
        cards = [one for one in topology.relevant if one.kind is DeviceKind.FPGA]
        return HostFacts(
            uses=uses,
            moved=frozenset(one.pci_address for one in functions if device_name("nic", one.pci_address) in moved),
            held=self._held,
            ethernet_rdma=self._ethernet_rdma(functions, touched),
            divisions=self._divisions(functions, touched),
            nodes={
                one.pci_address: driver_nodes(self._host, one, cards, problems)
                for one in functions
                if _may_have_own_nodes(one)
            },
            group_users=_group_users(topology, functions),
            wireless=self._wireless(functions),
            wholes={
                **{one.pci_address: None for one in cards if is_fpga_companion(one) and not one.is_vfio},
                **{part.pci_address: whole.pci_address for whole in cards for part in fpga_companions(whole, cards)},
            },
            managing=frozenset(one.pci_address for one in cards if is_fpga_management(one)),
            changing_drivers=frozenset(
                vendor_id
                for vendor_id, vendor in GPU_VENDORS.items()
                if vendor.has_driver_root and self._host.driver_root is not None
            ),
        )

    def _divisions(self, functions: Sequence[PciFunction], touched: Container[str] | None) -> dict[str, str]:
        """Return the subfunctions of adapters; each has a representor on its adapter, which comes before it."""
        asked = [
            one
            for one in functions
            if one.kind is DeviceKind.NIC and len(one.net) > 1 and one.physfn is None and not one.virtfns
        ]
        return {address: found for address, found in self._divided.of(asked, touched).items() if found is not None}

    def _ethernet_rdma(self, functions: Sequence[PciFunction], touched: Container[str] | None) -> frozenset[str]:
        """Return the functions whose RDMA needs an interface of their own that the host does not have."""
        asked = [
            one
            for one in functions
            if one.kind is DeviceKind.NIC
            and not one.net
            and one.infiniband
            and one.driver not in RDMA_WITHOUT_INTERFACE
        ]
        return frozenset(address for address, is_ethernet in self._ethernet.of(asked, touched).items() if is_ethernet)

    def _is_ethernet(self, function: PciFunction) -> bool:
        files = pci_files(self._host, function, [])
        layers = {layer for device in function.infiniband for layer in link_layers(files, device)}
        return layers == {"ethernet"}

    def _wireless(self, functions: Sequence[PciFunction]) -> frozenset[str]:
        """Return the interfaces of Wi-Fi adapters."""
        # The class alone does not tell: a ConnectX-3 may have it, too.
        return frozenset(
            name
            for one in functions
            if one.class_.startswith(_OTHER_NETWORK)
            for name in one.net
            if (self._host.sysfs / "bus/pci/devices" / one.pci_address / "net" / name / "phy80211").is_symlink()
        )


def unread(functions: Iterable[PciFunction], problem: Diagnostic) -> list[Exclusion]:
    """Return exclusions of functions that could not be described because of this problem."""
    return [
        Exclusion(
            device_name(_FAMILIES[one.kind], one.pci_address),
            problem.message,
            "unreadable",
            one.pci_address,
            problem.hint or "",
        )
        for one in functions
    ]


def _may_have_own_nodes(function: PciFunction) -> bool:
    """Return True if its driver may have made nodes that the scan does not know, and that decide."""
    if function.driver is None or function.is_vfio:
        return False
    if function.kind is DeviceKind.NIC:
        return not function.net and not function.infiniband
    if function.kind is DeviceKind.GPU and function.vendor_id in GPU_VENDORS:
        return False
    renders = function.drm is not None and function.drm.render is not None
    return vendor_nodes(function) is not NO_NODES or not (renders or function.accel)


def _group_users(topology: Topology, functions: Sequence[PciFunction]) -> dict[str, list[str]]:
    """Return by address of functions for user space: others of their IOMMU groups that the host uses."""
    groups: dict[int, list[PciFunction]] = {}
    passed = [one for one in functions if one.is_vfio and one.iommu_group is not None]
    if passed:
        for one in topology.devices:
            if one.iommu_group is not None and blocks_group(one.driver, one.class_):
                groups.setdefault(one.iommu_group, []).append(one)
    return {
        one.pci_address: [f"{other.pci_address} ({other.driver})" for other in groups[one.iommu_group]]
        for one in passed
        if one.iommu_group in groups
    }


def _name(function: PciFunction) -> str:
    return device_name(_FAMILIES[function.kind], function.pci_address)


def _whole(name: str) -> str:
    """Return the name of the whole device of a partition: family, domain, bus, device, function."""
    return "-".join(name.split("-", 5)[:5])


def _exclusion(name: str, address: str, reason: Refusal) -> Exclusion:
    return Exclusion(name, reason.reason, reason.code, address, reason.hint)


def _with_issue(device: Device, reason: Refusal) -> Device:
    is_used = reason.by_rule or reason.code in ("physical-function", "no-interface")
    cause = HOST_USE if is_used else NOT_CLAIMABLE
    message = f"it would not be published if no claim had it: {reason.reason}"
    return msgspec.structs.replace(
        device,
        health="unhealthy",
        health_reason=device.health_reason or message,
        issues=(*device.issues, ObservedIssue(cause, message)),
    )
