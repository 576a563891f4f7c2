"""Random hosts: parts in every state that drivers leave them in, and a random use of their interfaces by the host.

A catalog has each part in each state once, with an address, names and numbers of its own; it is built and scanned once.
A host is a selection of a few of its functions, so thousands of hosts cost no files: their functions are those of the
scan, and their network is that of the description. `RandomHost.build` makes the files of the same host.
"""

from __future__ import annotations

import ipaddress
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path

from dra_agent.claimable.network_view import MAIN_TABLE, NetworkView, Routes, Stack
from dra_agent.claimable.network_view import Interface as InterfaceView
from dra_agent.host import Host
from dra_agent.topology import PciFunction, Topology, scan
from dra_simulate import build_machine
from dra_simulate.host_network import (
    IFF_UP,
    Address,
    Bond,
    Bridge,
    HostNetwork,
    Macvlan,
    OpenVswitch,
    Route,
    VirtualInterface,
    Vlan,
    Vrf,
)
from dra_simulate.machine import Function, HostBridge, Machine, NumaNode, NvidiaDriver, PciId, Sriov
from dra_simulate.models import A100_PCIE, H200_SXM
from dra_simulate.parts.accelerators import alveo_u250, alveo_v80, gaudi2, gaudi3, pac_d5005
from dra_simulate.parts.amazon import TRAINIUM, efa, ena, neuron
from dra_simulate.parts.amd import mi210, strix_halo
from dra_simulate.parts.bridges import mac, nvme, port
from dra_simulate.parts.display import CHIPS, DisplayChip, display, intel_igpu
from dra_simulate.parts.held import DISPLAY, held_by, passed_through
from dra_simulate.parts.intel import battlemage
from dra_simulate.parts.network import bluefield3, broadcom, connectx3, connectx6dx, connectx7, virtio
from dra_simulate.parts.nvidia import gpu
from dra_simulate.roles.network import Interface, RdmaDevice
from dra_simulate.roles.nvidia import NvidiaGpu
from rare_parts import (
    amd_igpu,
    aws_f2,
    coral,
    erdma,
    hailo,
    hailo_4_22,
    hygon,
    memryx,
    metax,
    moore_threads,
    omni_path,
    pac_n3000_divided,
    pvrdma,
    qat,
    qat_of_vendor,
    roce_lag,
    slingshot,
    tpu_v4,
    tpu_v5e,
    vgpu_host,
    virtio_gpu,
    wifi,
    with_mediated_devices,
    without_driver,
    xdna,
)

MAX_FUNCTIONS = 12
_NAME = "catalog"
_PART_NUMBERS = 16
"""Numbers of interfaces, nodes and RDMA devices that each part may use."""
_DRM_STEP = 11
"""A card node has its number as minor, and a render node 128 more: no multiple is near 128."""
_VRF_TABLE = 10
_SOUND = 0x0403
_LAG = "lag"
"""Begin of the names of bonds under RoCE LAG."""

Part = Callable[["Place"], tuple[Function, ...]]
"""Makes the functions of one part; virtual functions are within their physical one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Team(VirtualInterface):
    """A team, as NetworkManager makes them."""

    kind = "team"
    needs_port = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ipvlan(VirtualInterface):
    """A second interface with the parent's hardware address."""

    kind = "ipvlan"


@dataclass(frozen=True)
class Damaged(Function):
    """A function with files in sysfs that are not as a driver writes them."""

    damage: Mapping[str, bytes | None] = field(default_factory=dict)
    """By the path below the function's folder, with * for names: contents; None: a folder is in the file's place."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part of the catalog is, and the numbers that are its own."""

    which: int
    iommu: bool

    @property
    def slot(self) -> str:
        """Bus and device: "0000:05:00"."""
        return f"0000:{self.which + 1:02x}:00"

    @property
    def address(self) -> str:
        """The first function."""
        return f"{self.slot}.0"

    @property
    def first(self) -> int:
        """The first of the numbers that no other part has."""
        return self.which * _PART_NUMBERS

    @property
    def card(self) -> int:
        """The first of a few numbers of DRM nodes, of which there are fewer."""
        return self.which * _DRM_STEP

    @property
    def index(self) -> int:
        """Number of the first interface."""
        return 2 + self.first

    def name(self, number: int = 0) -> str:
        """Name of an interface."""
        return f"ens{self.which}f{number}"

    def vfio(self, function: Function, number: int = 0) -> Function:
        """The function on vfio-pci."""
        return passed_through(function, self.first + number, iommu=self.iommu)


Change = Callable[[Function, Place], Function]


def _single(make: Callable[[Place], Function], *changes: Change) -> Part:
    """A part of one function, and of those within it."""

    def part(at: Place) -> tuple[Function, ...]:
        function = make(at)
        for change in changes:
            function = change(function, at)
        return (function,)

    return part


def _in_every_state(make: Callable[[Place], Function], *drivers: str) -> Iterator[Part]:
    """The function on its own driver, on vfio-pci, without a driver, and on each of these."""
    yield _single(make)
    yield _single(make, lambda one, at: at.vfio(one))
    yield _single(make, lambda one, _: without_driver(one))
    yield from (_single(make, _held(driver)) for driver in drivers)


def _held(driver: str) -> Change:
    return lambda one, at: held_by(one, driver, at.card if driver in DISPLAY else at.first)


def _variant(driver: str) -> Change:
    """On a vendor's variant of vfio-pci."""
    return lambda one, at: replace(at.vfio(one), driver=driver)


def _damaged(damage: Mapping[str, bytes | None]) -> Change:
    return lambda one, _: Damaged(**{each.name: getattr(one, each.name) for each in fields(one)}, damage=damage)


def _external(function: Function, _: Place) -> Function:
    return replace(function, attributes={**function.attributes, "removable": "removable"})


def _named(suffix: str) -> Change:
    """With another name of its interface."""
    return lambda one, _: replace(
        one,
        roles=tuple(
            replace(role, name=f"{role.name}{suffix}") if isinstance(role, Interface) else role for role in one.roles
        ),
    )


def _vfs_in_containers(function: Function, _: Place) -> Function:
    """Another network namespace has their interfaces."""
    return _with_vfs(function, lambda one, _: replace(one, roles=()))


def _vfs_without_driver(function: Function, _: Place) -> Function:
    return _with_vfs(function, lambda one, _: without_driver(one))


def _vfs_on_vfio(function: Function, place: Place) -> Function:
    return _with_vfs(function, place.vfio)


def _with_vfs(function: Function, change: Callable[[Function, int], Function]) -> Function:
    assert function.sriov is not None
    functions = tuple(change(one, number) for number, one in enumerate(function.sriov.functions))
    return replace(function, sriov=replace(function.sriov, functions=functions))


def _parts() -> Iterator[Part]:
    """Every part in every state."""
    yield from _adapters()
    yield from _gpus()
    yield from _accelerators()
    yield _single(lambda at: nvme(at.address, at.first))


def _connectx(place: Place, virtual: int = 0) -> Function:
    return connectx6dx(place.address, place.first, place.name(), place.index, machine=_NAME, virtual=virtual)


def _connectx_with_vfs(place: Place) -> Function:
    return _connectx(place, 2)


def _broadcom(place: Place) -> Function:
    return broadcom(place.address, place.name(), place.index, machine=_NAME)


_DAMAGE: tuple[Mapping[str, bytes | None], ...] = (
    {"numa_node": b"", "local_cpulist": b"", "uevent": b""},
    {"sriov_totalvfs": b"", "sriov_numvfs": b"many\n", "current_link_speed": None, "max_link_width": b"\xff"},
    {"subsystem_vendor": None, "subsystem_device": b"", "revision": b"\0", "numa_node": b"9" * 70000},
)
DAMAGE_OF_ADAPTERS = (*_DAMAGE, {"net/*/flags": b"", "net/*/mtu": b"x", "net/*/address": None, "net/*/operstate": b""})
DAMAGE_OF_GPUS = (*_DAMAGE, {"drm/*/uevent": b"", "drm/*/dev": None, "mem_info_vram_total": b"", "unique_id": b"?"})


def _adapters() -> Iterator[Part]:
    yield from _in_every_state(_connectx, "pci-stub", "pciback", "uio_pci_generic", "igb_uio")
    yield _single(_connectx_with_vfs)
    yield _single(_connectx_with_vfs, _vfs_on_vfio)
    yield _single(_connectx_with_vfs, _vfs_without_driver)
    yield _single(_connectx_with_vfs, _vfs_in_containers)
    yield _single(_connectx, _variant("mlx5_vfio_pci"))
    yield _single(_broadcom, _named("\udcff"))
    for damage in DAMAGE_OF_ADAPTERS:
        yield _single(_connectx, _damaged(damage))
    yield _single(lambda at: connectx7(at.address, at.first, at.name(), at.index, machine=_NAME))
    yield _single(lambda at: connectx7(at.address, at.first, at.name(), at.index, machine=_NAME, ethernet=True))
    yield from (_single(_two_ports(dead)) for dead in ((), (1,), (2,), (1, 2)))
    yield _single(_connectx3)
    yield lambda at: roce_lag(at.slot, at.first, (at.name(0), at.name(1)), at.index, machine=_NAME)
    yield lambda at: bluefield3(at.slot, at.first, at.index, machine=_NAME)
    yield lambda at: tuple(broadcom(f"{at.slot}.{n}", at.name(n), at.index + n, machine=_NAME) for n in range(2))
    # As the functions of a Chelsio card that are for storage.
    yield _single(_broadcom, lambda one, _: replace(one, roles=()))
    yield _single(_broadcom, lambda one, _: _disconnected(one, up=True))
    yield _single(_broadcom, lambda one, _: _disconnected(one, up=False))
    yield _single(lambda at: virtio(at.address, at.name(), at.index, machine=_NAME), _on_own_bus)
    yield _single(lambda at: ena(at.address, at.name(), at.index, machine=_NAME))
    yield _single(lambda at: efa(at.address, at.first, machine=_NAME))
    yield _single(lambda at: erdma(at.address, at.first, machine=_NAME))
    yield _single(lambda at: pvrdma(at.address, at.first, machine=_NAME))
    yield _single(lambda at: slingshot(at.address, at.first, at.name(), at.index, machine=_NAME))
    yield _single(lambda at: omni_path(at.address, at.first, machine=_NAME))
    yield _single(lambda at: wifi(at.address, at.name(), at.index, machine=_NAME))


def _connectx3(place: Place) -> Function:
    names = (place.name(0), place.name(1))
    return connectx3(place.address, place.first, names, place.index, machine=_NAME, ethernet=False)


def _two_ports(dead: tuple[int, ...]) -> Callable[[Place], Function]:
    """One function with two ports, as a ConnectX-3 has; those in `dead` (1 and 2) have no cable."""

    def make(at: Place) -> Function:
        one = _connectx(at)
        interface, rdma = one.roles
        assert isinstance(interface, Interface) and isinstance(rdma, RdmaDevice)
        ports = tuple(
            replace(
                interface,
                name=at.name(number),
                mac=mac(_NAME, at.index + number),
                index=at.index + number,
                dev_port=number,
                cable=number + 1 not in dead,
            )
            for number in range(2)
        )
        both = replace(rdma, ports=2, without_cable=frozenset(dead))
        return replace(one, id=replace(one.id, device=0x1003), driver="mlx4_core", roles=(*ports, both), sriov=None)

    return make


def _disconnected(function: Function, *, up: bool) -> Function:
    roles = tuple(replace(role, up=up, cable=False) if isinstance(role, Interface) else role for role in function.roles)
    return replace(function, roles=roles)


def _on_own_bus(function: Function, place: Place) -> Function:
    roles = tuple(
        replace(role, bus_device=f"virtio{place.first}") if isinstance(role, Interface) else role
        for role in function.roles
    )
    return replace(function, roles=roles)


def _nvidia(place: Place) -> Function:
    return gpu(place.address, A100_PCIE, place.first, machine=_NAME)


def _amd(place: Place) -> Function:
    return mi210(place.address, place.card, 128 + place.card, machine=_NAME)


def _intel(place: Place, virtual: int = 0) -> Function:
    return battlemage(place.address, place.card, virtual=virtual, quota=(4 << 30) * bool(virtual))


def _intel_with_vfs(place: Place) -> Function:
    return _intel(place, 2)


def _gpus() -> Iterator[Part]:
    yield from _in_every_state(_nvidia, "nouveau", "NovaCore", "pci-stub", "pciback", "uio_pci_generic")
    yield from _in_every_state(_amd, "radeon", "gim", "pci-stub")
    yield from _in_every_state(_intel, "pci-stub")
    yield _single(
        lambda at: gpu(at.address, H200_SXM, at.first, machine=_NAME), lambda one, _: vgpu_host(one, (1433, 0))
    )
    yield _single(_amd, _gim_host)
    yield _single(_intel_with_vfs)
    yield _single(_intel_with_vfs, _vfs_without_driver)
    yield _single(_intel_with_vfs, _vfs_on_vfio)
    yield _single(lambda at: intel_igpu(at.card, address=at.address))
    yield _single(lambda at: amd_igpu(at.address, at.card, machine=_NAME))
    yield from (_single(_display(chip)) for chip in CHIPS)
    yield _single(lambda at: virtio_gpu(at.address, at.card))
    yield _single(lambda at: virtio_gpu(at.address, at.card, f"virtio{at.first}"))
    yield _single(_nvidia, lambda one, _: with_mediated_devices(one))
    yield _single(_nvidia, _in_a_virtual_machine)
    yield _single(lambda at: intel_igpu(at.card, address=at.address), lambda one, _: with_mediated_devices(one))
    yield _single(lambda at: intel_igpu(at.card, address=at.address), _in_a_virtual_machine)
    yield _single(lambda at: strix_halo(at.address, at.card))
    yield from _in_every_state(lambda at: metax(at.address, at.card))
    yield _single(lambda at: moore_threads(at.address, at.card))
    yield _with_sound(in_use=True)
    yield _with_sound(in_use=False)
    yield _single(_amd, _external)
    yield _single(_nvidia, _variant("nvgrace_gpu_vfio_pci"))
    for damage in DAMAGE_OF_GPUS:
        yield _single(_amd, _damaged(damage))


def _in_a_virtual_machine(function: Function, place: Place) -> Function:
    return with_mediated_devices(function, f"83b8f4f2-509f-382f-3c1e-e6bfe0fa{place.which:04x}")


def _with_sound(*, in_use: bool) -> Part:
    """A GPU on vfio-pci with its sound function in the same IOMMU group."""

    def part(at: Place) -> tuple[Function, ...]:
        sound = Function(
            f"{at.slot}.1", PciId(0x10DE, 0x1AEF, 0x040300, 0x10DE, 0x0000), driver="snd_hda_intel" if in_use else None
        )
        return at.vfio(_nvidia(at)), sound

    return part


def _display(chip: DisplayChip) -> Callable[[Place], Function]:
    return lambda at: display(at.address, at.card, chip)


def _gim_host(function: Function, place: Place) -> Function:
    virtual = Function(f"{place.slot}.1", replace(function.id, device=0x7410))
    held = held_by(function, "gim")
    return replace(held, sriov=Sriov(4, 0x7410, functions=(place.vfio(virtual),)))


def _accelerators() -> Iterator[Part]:
    yield from _in_every_state(lambda at: gaudi2(at.address, at.first), "pci-stub")
    yield from _in_every_state(lambda at: xdna(at.address, at.first), "pci-stub")
    yield from _in_every_state(lambda at: coral(at.address, at.first), "pci-stub")
    yield from _in_every_state(lambda at: hailo(at.address, at.first), "pci-stub")
    yield from _in_every_state(lambda at: tpu_v4(at.address, at.first))
    yield from _in_every_state(lambda at: tpu_v5e(at.address))
    yield lambda at: aws_f2(at.slot)
    yield lambda at: tuple(at.vfio(one, which) for which, one in enumerate(aws_f2(at.slot)))
    yield _single(lambda at: qat_of_vendor(at.address, at.first))
    yield from _in_every_state(lambda at: pac_d5005(at.address, at.first), "pci-stub")
    yield _single(lambda at: gaudi3(at.address, at.first, machine=_NAME))
    yield _single(lambda at: pac_n3000_divided(at.address, at.first))
    yield _single(lambda at: hailo_4_22(at.address, at.first))
    yield _single(lambda at: memryx(at.address, at.first))
    yield from _in_every_state(lambda at: hygon(at.address, at.card))
    yield _single(lambda at: qat(at.address))
    yield _single(lambda at: qat(at.address, virtual=2))
    yield _single(lambda at: qat(at.address, virtual=2), _vfs_on_vfio)
    yield _single(lambda at: neuron(at.address, at.first, TRAINIUM))
    yield lambda at: alveo_u250(at.slot, at.first, 128 + at.card)
    yield lambda at: alveo_v80(at.slot, at.first, (1000 + at.first, 1001 + at.first))


@dataclass(frozen=True)
class Catalog:
    """Every part in every state, as one machine that nobody has."""

    machine: Machine
    parts: tuple[tuple[Function, ...], ...]
    """Of each part: its functions, without those within them."""
    ports: tuple[str, ...]
    """Of each part: the root port that it is behind."""

    @cached_property
    def adapters(self) -> tuple[int, ...]:
        """The parts with Ethernet interfaces."""
        return tuple(which for which, part in enumerate(self.parts) if _interfaces(part))

    @cached_property
    def lags(self) -> dict[int, tuple[str, ...]]:
        """The interfaces of each part with RoCE LAG, which exists only while they are in a bond."""
        return {
            which: tuple(role.name for role in _interfaces(part))
            for which, part in enumerate(self.parts)
            if any(isinstance(role, RdmaDevice) and role.name.startswith("mlx5_bond_") for role in part[0].roles)
        }

    @cached_property
    def scanned(self) -> dict[str, PciFunction]:
        """What a scan finds, by address."""
        with tempfile.TemporaryDirectory() as folder:
            return scan(self.build(Path(folder) / "host")).by_address

    def build(self, root: Path, *, nvml: bool = False) -> Host:
        """Make the files of all parts; with NVIDIA's library, which starts slowly, if `nvml`."""
        return _build(self.machine if nvml else replace(self.machine, nvidia=None), root)


def _build(machine: Machine, root: Path) -> Host:
    host = build_machine(machine, root)
    for function in machine.functions():
        if isinstance(function, Damaged):
            folder = host.sysfs / "bus/pci/devices" / function.address
            for pattern, content in function.damage.items():
                for path in folder.glob(pattern):
                    path.unlink()
                    path.mkdir() if content is None else path.write_bytes(content)
    return host


@cache
def catalog(*, iommu: bool) -> Catalog:
    """Return the catalog of hosts with or without an IOMMU."""
    parts = tuple(part(Place(which, iommu)) for which, part in enumerate(_parts()))
    ports = tuple(f"0000:00:{which // 8:02x}.{which % 8}" for which in range(len(parts)))
    behind = tuple(port(address, *functions) for address, functions in zip(ports, parts, strict=True))
    machine = Machine(
        _NAME,
        "every part in every state",
        nodes=(NumaNode("0-3", 64 << 30, (10,)),),
        bridges=(HostBridge("pci0000:00", 0, behind),),
        iommu=iommu,
        nvidia=NvidiaDriver("570.124.06", 12080),
    )
    return Catalog(replace(machine, together=_with_sound_functions(parts)), parts, ports)


def _with_sound_functions(parts: Sequence[tuple[Function, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the addresses of GPUs with functions for sound: nothing between the functions of a card has ACS."""
    return tuple(tuple(one.address for one in part) for part in parts if part[-1].id.class_code >> 8 == _SOUND)


@dataclass(frozen=True)
class RandomHost:
    """One host; the seed determines it."""

    seed: int
    iommu: bool
    chosen: tuple[int, ...]
    """Which parts of the catalog it has."""
    network: HostNetwork

    @property
    def descriptions(self) -> tuple[Function, ...]:
        """The described functions, also those within others; without ports."""
        parts = catalog(iommu=self.iommu).parts
        return tuple(one for which in self.chosen for top in parts[which] for one in top.within())

    @property
    def functions(self) -> tuple[PciFunction, ...]:
        """The same functions as a scan finds them, in the order of their addresses."""
        scanned = catalog(iommu=self.iommu).scanned
        return tuple(scanned[address] for address in sorted(one.address for one in self.descriptions))

    @property
    def machine(self) -> Machine:
        """Its description."""
        whole = catalog(iommu=self.iommu)
        absent = [address for which, address in enumerate(whole.ports) if which not in self.chosen]
        machine = replace(whole.machine.without(absent), name=f"random-{self.seed}", network=self.network)
        # Numbers of groups are those of the catalog.
        machine.__dict__["iommu_groups"] = whole.machine.iommu_groups
        has_nvidia = any(isinstance(role, NvidiaGpu) for one in self.descriptions for role in one.roles)
        return machine if has_nvidia else _without_nvidia(machine)

    def build(self, root: Path) -> Host:
        """Make its files."""
        return _build(self.machine, root)

    @property
    def topology(self) -> Topology:
        """What a scan finds."""
        return Topology((), self.functions)

    @property
    def view(self) -> NetworkView:
        """Its network, as the kernel reports it."""
        hardware = {role.name: role.up for which in self.chosen for role in self._interfaces_of(which)}
        return _view(self.network, hardware)

    def _interfaces_of(self, which: int) -> list[Interface]:
        part = catalog(iommu=self.iommu).parts[which]
        return [role for top in part for one in top.within() for role in one.roles if isinstance(role, Interface)]


def _without_nvidia(machine: Machine) -> Machine:
    other = replace(machine, nvidia=None)
    other.__dict__["iommu_groups"] = machine.iommu_groups
    return other


def random_host(seed: int) -> RandomHost:
    """Return the host of that seed: of 1 to MAX_FUNCTIONS functions, and a network over their interfaces."""
    dice = random.Random(seed)
    iommu = dice.random() < 0.85
    whole = catalog(iommu=iommu)
    wanted = dice.randint(1, MAX_FUNCTIONS)
    chosen: list[int] = []
    count = 0
    while True:
        # Half of the parts are adapters: they are what a host itself uses.
        which = dice.choice(whole.adapters) if dice.random() < 0.5 else dice.randrange(len(whole.parts))
        if which in chosen:
            continue
        size = sum(1 for top in whole.parts[which] for _ in top.within())
        if chosen and count + size > wanted:
            break
        chosen.append(which)
        count += size
    interfaces = {role.name: role.up for which in sorted(chosen) for role in _interfaces(whole.parts[which])}
    lags = [whole.lags[which] for which in sorted(chosen) if which in whole.lags]
    return RandomHost(seed, iommu, tuple(sorted(chosen)), _network(dice, interfaces, lags))


def _view(network: HostNetwork, hardware: Mapping[str, bool]) -> NetworkView:
    """Return the interfaces with their routes; `hardware`: whether each interface of a function is switched on."""
    stack, routes = Stack(), Routes[str]()
    masters = {port: one.name for one in network.interfaces for port in one.ports}
    tables = {port: one.table for one in network.interfaces if isinstance(one, Vrf) for port in one.ports}
    virtual = {one.name: one for one in network.interfaces}
    for one in network.interfaces:
        for lower in (*one.ports, *([one.parent] if one.parent else ())):
            stack.add(one.name, lower)
    for address in network.addresses:
        if _is_on(address.interface, hardware, virtual):
            own = ipaddress.ip_interface(address.address).network
            table = tables.get(address.interface, MAIN_TABLE)
            routes.add(address.interface, own.network_address.packed, own.prefixlen, None, table)
    for route in network.routes:
        to = ipaddress.ip_network(route.destination)
        gateway = ipaddress.ip_address(route.gateway).packed if route.gateway else None
        routes.add(route.interface, to.network_address.packed, to.prefixlen, gateway, route.table)
    interfaces = {
        name: InterfaceView(
            name,
            virtual[name].kind if name in virtual else None,
            masters.get(name),
            stack.uppers(name, masters.get(name)),
            tuple(one.address for one in network.addresses if one.interface == name),
            unknown=None,
            **routes.of(name),
        )
        for name in (*hardware, *virtual)
    }
    return NetworkView(interfaces)


def _is_on(name: str, hardware: Mapping[str, bool], virtual: Mapping[str, VirtualInterface]) -> bool:
    if name in hardware:
        return hardware[name]
    one = virtual[name]
    return bool(one.flags & IFF_UP) and (one.parent is None or _is_on(one.parent, hardware, virtual))


def _interfaces(part: tuple[Function, ...]) -> list[Interface]:
    return [
        role
        for top in part
        for one in top.within()
        for role in one.roles
        if isinstance(role, Interface) and not role.infiniband
    ]


def _network(dice: random.Random, hardware: Mapping[str, bool], lags: Sequence[tuple[str, ...]]) -> HostNetwork:
    """Return virtual interfaces, addresses and routes at random, over the bonds that hardware needs.

    `hardware`: whether each interface is switched on.
    """
    first = 2 + _PART_NUMBERS * 256
    interfaces: list[VirtualInterface] = [
        Bond(name=f"{_LAG}{number}", index=first + number, ports=ports) for number, ports in enumerate(lags)
    ]
    first += len(lags)
    on = {**hardware, **{one.name: True for one in interfaces}}
    every = list(on)
    free = [name for name in every if not any(name in ports for ports in lags)]
    for number in range(dice.choice((0, 0, 1, 1, 2, 3))):
        kind = dice.choice(("bond", "team", "bridge", "vlan", "vrf", "macvlan", "ipvlan", "ovs"))
        dice.shuffle(free)
        ports = tuple(free[: dice.randint(1, 2)])
        if not every or (kind in ("bond", "team", "bridge", "vrf", "ovs") and not ports):
            continue
        made = _virtual(kind, number, first + number, ports, dice)
        if made.parent is None:
            free = [name for name in free if name not in ports]
        else:
            made = replace(made, parent=dice.choice(every))
        interfaces.append(made)
        on[made.name] = bool(made.flags & IFF_UP) and (made.parent is None or on[made.parent])
        every.append(made.name)
        free.append(made.name)
    addresses, routes = [], []
    for number, name in enumerate(every):
        if dice.random() < 0.3:
            addresses.append(Address(name, f"10.{number}.0.2/24"))
            if dice.random() < 0.3:
                addresses.append(Address(name, f"2001:db8:{number:x}::2/64"))
            # The kernel accepts no route through an interface that is off.
            if on[name] and dice.random() < 0.3:
                destination, gateway = dice.choice(
                    (
                        ("0.0.0.0/0", f"10.{number}.0.1"),
                        (f"10.{100 + number}.0.0/16", f"10.{number}.0.1"),
                        (f"10.{100 + number}.0.0/16", None),
                        ("0.0.0.0/0", None),
                        ("::/0", f"2001:db8:{number:x}::1"),
                        (f"2001:db8:1{number:03x}::/64", f"2001:db8:{number:x}::1"),
                    )
                )
                routes.append(Route(destination, name, gateway))
    return HostNetwork(tuple(interfaces), tuple(addresses), tuple(routes))


def _virtual(kind: str, number: int, index: int, ports: tuple[str, ...], dice: random.Random) -> VirtualInterface:
    match kind:
        case "bond":
            mode = dice.choice(("802.3ad", "active-backup"))
            return Bond(name=f"bond{number}", index=index, ports=ports, mode=mode)
        case "bridge":
            return Bridge(name=f"br{number}", index=index, ports=ports)
        case "vrf":
            return Vrf(name=f"vrf{number}", index=index, ports=ports, table=_VRF_TABLE + number)
        case "ovs":
            return OpenVswitch(name=f"ovs-system{number}", index=index, ports=ports)
        case "team":
            return Team(name=f"team{number}", index=index, ports=ports)
        case "ipvlan":
            return Ipvlan(name=f"ipvlan{number}", index=index, parent="")
        case "macvlan":
            return Macvlan(name=f"macvlan{number}", index=index, parent="")
        case _:
            return Vlan(name=f"vlan{number}", index=index, parent="", vlan_id=100 + number)


def smallest(host: RandomHost, fails: Callable[[RandomHost], bool]) -> RandomHost:
    """Return the host with as few parts and as little network as fail in the same way."""
    for smaller in _smaller(host):
        if fails(smaller):
            return smallest(smaller, fails)
    return host


def _smaller(host: RandomHost) -> Iterator[RandomHost]:
    for which in host.chosen if len(host.chosen) > 1 else ():
        chosen = tuple(one for one in host.chosen if one != which)
        yield replace(host, chosen=chosen, network=_present(host, chosen))
    network = host.network
    for kind in ("interfaces", "addresses", "routes"):
        entries = getattr(network, kind)
        for one in reversed(entries):
            if getattr(one, "name", "").startswith(_LAG):
                continue
            rest = tuple(other for other in entries if other != one)
            less = replace(host, network=replace(network, **{kind: rest}))
            yield replace(host, network=_present(less, host.chosen))


def _present(host: RandomHost, chosen: tuple[int, ...]) -> HostNetwork:
    """Return the network without what uses interfaces that are gone."""
    parts = catalog(iommu=host.iommu).parts
    known = {role.name for which in chosen for role in _interfaces(parts[which])}
    interfaces = []
    for one in host.network.interfaces:
        ports = tuple(name for name in one.ports if name in known)
        if (one.parent or "") in {*known, ""} and bool(ports) == bool(one.ports):
            interfaces.append(replace(one, ports=ports))
            known.add(one.name)
    return HostNetwork(
        tuple(interfaces),
        tuple(one for one in host.network.addresses if one.interface in known),
        tuple(one for one in host.network.routes if one.interface in known),
    )
