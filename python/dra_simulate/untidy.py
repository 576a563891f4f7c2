"""The untidy sibling of a machine: the same hardware as people run it, "dgx-h100-untidy" for "dgx-h100".

What every sibling has, as far as its hardware allows: a display chip of the management controller, the management
interfaces in a bond with a VLAN that has the default route, a GPU on a foreign driver, virtual functions on an adapter
(one with an interface, one for a virtual machine), a port without a cable, addresses on the rails, an integrated GPU.
The rails of some are routed. A machine and its name determine the result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from dra_simulate.host_network import Address, Bond, HostNetwork, Route, VirtualInterface, Vlan
from dra_simulate.machine import Function, HostBridge, LinkState, Machine, Role, Sriov, bus_range
from dra_simulate.parts.bridges import guid, mac, port
from dra_simulate.parts.display import DisplayChip, display, intel_igpu
from dra_simulate.parts.held import held_by, passed_through
from dra_simulate.parts.network import broadcom, virtio
from dra_simulate.profiles import SUFFIX
from dra_simulate.roles.amd import AmdGpu
from dra_simulate.roles.drm import DrmNodes
from dra_simulate.roles.network import Interface, RdmaDevice
from dra_simulate.roles.nvidia import NvidiaGpu

_PHYSICAL_CHIPS: tuple[DisplayChip, ...] = ("ast", "mgag200", "hibmc-drm")
_FOREIGN = {0x10DE: ("nouveau", "pci-stub"), 0x1002: ("pci-stub", "pciback"), 0x8086: ("pci-stub", "uio_pci_generic")}
"""Drivers of a GPU that nothing can compute with, by its vendor."""
_ANY_VENDOR = ("pci-stub",)
_WORKSTATIONS = ("arc-b60",)
"""Machines with an Intel CPU that has an integrated GPU."""
_ROUTED = ("gb200-nvl",)
"""Machines whose rails have a gateway each, as in a fabric that is routed between racks."""
_RAIL_TABLE = 100
"""Routing table of the first rail."""
_MLX5_VF = 0x101E
_VLAN = 100


def untidy(machine: Machine) -> Machine:
    """Return the sibling."""
    present = machine
    for change in (_displays, _foreign_gpu, _management, _virtual_functions, _dead_port, _network):
        present = change(present)
    return replace(
        present,
        name=f"{machine.name}{SUFFIX}",
        description=f"{machine.description}; as people run it",
        source=f"{machine.source}; what makes it untidy: assumed, after public reports",
    )


def _choice(machine: Machine, about: str, count: int) -> int:
    """Return a number below `count` that the machine's name determines."""
    return hashlib.sha256(f"{machine.name}/{about}".encode()).digest()[0] % count


def _is_gpu(function: Function) -> bool:
    # Instinct GPUs have the class of accelerators.
    return function.id.class_code >> 16 == 0x03 or function.id.vendor == 0x1002


def _has_vfs(function: Function) -> bool:
    return bool(function.sriov and function.sriov.functions)


def _is_virtual_machine(machine: Machine) -> bool:
    return not machine.iommu


def _free_card(machine: Machine) -> int:
    """Return the lowest number that no card node has; amdgpu reserves those of partitions too."""
    used: set[int] = set()
    for function in machine.functions():
        for role in function.roles:
            if isinstance(role, DrmNodes):
                used |= {role.card if role.card is not None else -1, (role.render or 127) - 128}
            elif isinstance(role, AmdGpu) and role.platform_device is not None:
                used |= set(range(role.card, role.card + role.drm_devices))
    return next(number for number in range(len(used) + 1) if number not in used)


def _with_root(machine: Machine, children: Callable[[int], tuple[Function, ...]], link: LinkState) -> Machine:
    """Add a root port with functions behind it, on buses that nothing uses; `children` takes the bus of the functions.

    A virtual machine has no ports: the functions are on its first bus, with a free device number.
    """
    used = set(_buses(machine))
    if _is_virtual_machine(machine):
        first = next((bridge for bridge in machine.bridges if bridge.name == "pci0000:00"), None)
        root = first or HostBridge("pci0000:00", -1, ())
        grown = replace(root, functions=(*root.functions, *children(0)))
        others = tuple(bridge for bridge in machine.bridges if bridge is not first)
        return replace(machine, bridges=tuple(sorted((grown, *others), key=lambda bridge: bridge.name)))
    bus = next(bus for bus in range(0xF8, 0, -2) if not used & {bus, bus + 1})
    root = HostBridge(f"pci0000:{bus:02x}", 0, (port(f"0000:{bus:02x}:1c.0", *children(bus + 1), link=link),))
    return replace(machine, bridges=tuple(sorted((*machine.bridges, root), key=lambda bridge: bridge.name)))


def _buses(machine: Machine) -> Iterator[int]:
    for bridge in machine.bridges:
        yield int(bridge.name.rpartition(":")[2], 16)
    for function in machine.functions():
        yield int(function.address.split(":")[1], 16)
        buses = bus_range(function)
        if buses:
            yield from range(buses[0], buses[1] + 1)


def _displays(machine: Machine) -> Machine:
    """A display chip, and the integrated GPU of a workstation's CPU."""
    chip: DisplayChip = "bochs-drm"
    if not _is_virtual_machine(machine):
        chip = _PHYSICAL_CHIPS[_choice(machine, "display", len(_PHYSICAL_CHIPS))]

    def chips(bus: int) -> tuple[Function, ...]:
        device = "1e.0" if _is_virtual_machine(machine) else "00.0"
        return (display(f"0000:{bus:02x}:{device}", _free_card(machine), chip),)

    shown = _with_root(machine, chips, LinkState(1, 1))
    if machine.name in _WORKSTATIONS:
        first, *others = shown.bridges
        grown = replace(first, functions=(*first.functions, intel_igpu(_free_card(shown))))
        return replace(shown, bridges=(grown, *others))
    return shown


def _foreign_gpu(machine: Machine) -> Machine:
    """The last of several GPUs on another driver, or of accelerators without GPUs; one with virtual functions stays."""
    every = [
        function
        for function in _physical(machine)
        if function.id.class_code >> 16 in (0x03, 0x12) and function.link and function.driver not in (None, "vfio-pci")
    ]
    accelerators = [function for function in every if _is_gpu(function)] or every
    whole = [function for function in accelerators if not _has_vfs(function)]
    if len(accelerators) < 2 or not whole:
        return machine
    held = whole[-1]
    drivers = _FOREIGN.get(held.id.vendor, _ANY_VENDOR)
    driver = drivers[_choice(machine, "driver", len(drivers))]
    card = _free_card(machine) if driver == "nouveau" else 0

    def change(function: Function) -> Function:
        if function.address == held.address:
            return held_by(function, driver, card)
        return replace(function, roles=tuple(_unlinked(role, held.address) for role in function.roles))

    return _changed(machine, change)


def _unlinked(role: Role, address: str) -> Role:
    """An NVLink whose other end has no driver is not active."""
    if isinstance(role, NvidiaGpu):
        return replace(role, nvlinks=tuple(end for end in role.nvlinks if end != address))
    return role


def _physical(machine: Machine) -> list[Function]:
    virtual = {one.address for function in machine.functions() if function.sriov for one in function.sriov.functions}
    return [function for function in machine.functions() if function.address not in virtual]


def _ethernet(machine: Machine, *, rdma: bool) -> list[Function]:
    """Physical functions with an Ethernet interface that is switched on, by bus."""
    return [
        function
        for function in _physical(machine)
        if any(isinstance(role, Interface) and role.up and not role.infiniband for role in function.roles)
        and any(isinstance(role, RdmaDevice) for role in function.roles) is rdma
    ]


def _next_index(machine: Machine) -> int:
    return 1 + max((role.index for _, role in machine.with_role(Interface)), default=1)


def _management(machine: Machine) -> Machine:
    """Two onboard ports (one in a virtual machine), where the only Ethernet adapters are those of the rails."""
    if _ethernet(machine, rdma=False):
        return machine
    index, name = _next_index(machine), machine.name

    def ports(bus: int) -> tuple[Function, ...]:
        if _is_virtual_machine(machine):
            return (virtio(f"0000:{bus:02x}:1d.0", "ens29", index, machine=name),)
        return tuple(broadcom(f"0000:{bus:02x}:00.{n}", f"eno{n + 1}np{n}", index + n, machine=name) for n in range(2))

    return _with_root(machine, ports, LinkState(3, 8))


def _virtual_functions(machine: Machine) -> Machine:
    """Two virtual functions on the first adapter that can have them and has none: an interface, and one on vfio-pci."""
    if _is_virtual_machine(machine):
        return machine
    parent = next(
        (function for function in _physical(machine) if function.driver == "mlx5_core" and not _has_vfs(function)),
        None,
    )
    if parent is None:
        return machine
    slot = parent.address.rpartition(":")[0]
    taken = {function.address for function in machine.functions()}
    # Functions of one card may share the slot; routing IDs of virtual functions follow with an offset.
    free = (f"{slot}:{device:02x}.{number}" for device in range(32) for number in range(8))
    first, second = islice((address for address in free if address not in taken), 2)
    device = replace(parent.id, device=_MLX5_VF)
    rdma = 1 + max(role.number for _, role in machine.with_role(RdmaDevice))
    index = _next_index(machine)
    above = next(role for role in parent.roles if isinstance(role, Interface))
    port_above = next((role for role in parent.roles if isinstance(role, RdmaDevice)), None)
    address = above.mac if above.infiniband else mac(machine.name, 200)
    interface = replace(above, name=f"{above.name}v0", mac=address, index=index)
    roles: tuple[Role, ...] = (interface,)
    if port_above is not None:
        rdma_device = replace(port_above, name=f"mlx5_{rdma}", node_guid=guid(machine.name, 200), number=rdma)
        roles = (interface, rdma_device)
    own = Function(first, device, driver="mlx5_core", link=parent.link, roles=roles)
    # As for every function that is bound to vfio-pci, the number is its position among all.
    number = [function.address for function in machine.functions()].index(parent.address) + 2
    for_guest = passed_through(Function(second, device, link=parent.link), number)
    sriov = replace(parent.sriov or Sriov(8, _MLX5_VF), functions=(own, for_guest))
    return _changed(machine, lambda one: replace(one, sriov=sriov) if one.address == parent.address else one)


def _dead_port(machine: Machine) -> Machine:
    """The last adapter has no cable: of the rails if there are several, else of the management ports."""
    rails = [
        function
        for function in _physical(machine)
        if _names(function) and any(isinstance(role, RdmaDevice) for role in function.roles)
    ]
    plain = _ethernet(machine, rdma=False)
    candidates = rails if len(rails) > 1 else plain if len(plain) > 1 else []
    dead = [function for function in candidates if not _has_vfs(function)][-1:]
    if not dead:
        return machine

    def change(function: Function) -> Function:
        return replace(function, roles=tuple(map(_unplugged, function.roles))) if function in dead else function

    return _changed(machine, change)


def _unplugged(role: Role) -> Role:
    if isinstance(role, Interface):
        return replace(role, cable=False)
    if isinstance(role, RdmaDevice):
        return replace(role, without_cable=frozenset(range(1, role.ports + 1)))
    return role


def _network(machine: Machine) -> Machine:
    """The bond of the management ports, its VLAN with the default routes, and an address on each rail.

    Of routed rails, every second one has a table of its own, which a rule selects by the address (`ip rule add from`).
    """
    management = [name for function in _ethernet(machine, rdma=False) for name in _names(function)][:2]
    index = _next_index(machine)
    # Switches do not speak LACP everywhere.
    mode = ("active-backup", "802.3ad")[_choice(machine, "bond", 2)]
    bond = Bond(name="bond0", index=index, ports=tuple(management), mode=mode)
    vlan = Vlan(name=f"bond0.{_VLAN}", index=index + 1, parent="bond0", vlan_id=_VLAN)
    interfaces: tuple[VirtualInterface, ...] = (bond, vlan)
    rails = [name for function in _ethernet(machine, rdma=True) for name in _names(function)]
    return replace(
        machine,
        network=HostNetwork(
            interfaces,
            addresses=(
                Address(vlan.name, "192.0.2.10/24"),
                Address(vlan.name, "2001:db8::10/64"),
                *(Address(name, f"172.16.{rail}.10/24") for rail, name in enumerate(rails)),
            ),
            routes=(
                Route("0.0.0.0/0", vlan.name, "192.0.2.1"),
                Route("::/0", vlan.name, "2001:db8::1"),
                *(_rail_route(rail, name) for rail, name in enumerate(rails if machine.name in _ROUTED else ())),
            ),
        ),
    )


def _rail_route(rail: int, name: str) -> Route:
    gateway = f"172.16.{rail}.1"
    if rail % 2:
        return Route("0.0.0.0/0", name, gateway, table=_RAIL_TABLE + rail)
    # Equal routes of one table differ in their metric.
    return Route("172.16.0.0/12", name, gateway, metric=_RAIL_TABLE + rail)


def _names(function: Function) -> list[str]:
    return [role.name for role in function.roles if isinstance(role, Interface)]


def _changed(machine: Machine, change: Callable[[Function], Function]) -> Machine:
    """Return the machine with changed functions; unlike `Machine.changed`, its groups follow from the new ones."""
    return replace(machine.changed(change))
