"""Untidy siblings of profiles: trees without contradictions, the same for each build, and what makes them untidy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_agent.errors import UsageError
from dra_agent.host import Host
from dra_agent.topology import scan
from dra_simulate import build, inject, profiles
from dra_simulate.host_network import MAIN_TABLE, Bond, Route, Vlan, netdevs
from dra_simulate.kernel import SimulatedKernel
from dra_simulate.machine import Function, Machine
from dra_simulate.profiles import load_profile
from dra_simulate.roles.drm import DrmNodes
from dra_simulate.roles.network import Interface, RdmaDevice

UNTIDY = tuple(f"{profile}-untidy" for profile in profiles())
Standing = Callable[[str], Host]


@pytest.mark.parametrize("profile", UNTIDY)
def test_scan_finds_every_function_of_an_untidy_machine(profile: str, standing: Standing) -> None:
    topology = scan(standing(profile))
    machine = load_profile(profile)
    described = {function.address: function.driver for function in machine.functions()}
    assert len(described) == len(list(machine.functions()))
    assert topology.problems == ()
    assert {device.pci_address: device.driver for device in topology.devices} == described
    assert {name for device in topology.devices for name in device.net} == {
        role.name for _, role in machine.with_role(Interface)
    }
    assert machine == load_profile(profile), "the name determines it"


@pytest.mark.parametrize("profile", UNTIDY)
def test_links_and_nodes_of_an_untidy_machine_are_whole(profile: str, standing: Standing) -> None:
    host = standing(profile)
    root = host.sysfs.parent
    for path in walk(root):
        if path.is_symlink() and path.name not in ("subsystem", "device"):
            assert path.exists(), f"{path} -> {path.readlink()}"
            assert path.resolve().is_relative_to(root)
    numbers = [path.stat().st_rdev for path in walk(host.dev) if path.is_char_device() and not path.is_symlink()]
    assert len(numbers) == len(set(numbers)), "no two nodes share a number"
    uevents = [path for path in walk(host.sysfs / "devices") if path.name == "uevent" and "/net/" in str(path)]
    indices = [path.read_text().partition("IFINDEX=")[2] for path in uevents]
    assert len(indices) == len(set(indices)), "no two interfaces share a number"


def walk(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        yield from (Path(here) / name for name in (*folders, *files))


@pytest.mark.parametrize("profile", UNTIDY)
def test_an_untidy_machine_uses_its_adapters_as_people_do(profile: str) -> None:
    machine, ideal = load_profile(profile), load_profile(profile.removesuffix("-untidy"))
    known, drivers = netdevs(machine), {one.address: one.driver for one in machine.functions()}
    assert machine.network is not None
    bond, vlan = machine.network.interfaces
    assert isinstance(bond, Bond) and isinstance(vlan, Vlan)
    assert bond.ports and set(bond.ports) <= known.keys()
    uplinks = {route.interface for route in machine.network.routes if is_default(route)}
    assert uplinks == {vlan.name}
    assert known[vlan.name].is_up, "the host is reachable"
    assert [
        function for function, role in machine.with_role(DrmNodes) if role.render is None and is_new(function, ideal)
    ]
    rails = {role.name for function, role in machine.with_role(Interface) if is_rail(function) and not role.infiniband}
    addressed = {entry.interface for entry in machine.network.addresses}
    virtual = {one.address for function in machine.functions() if function.sriov for one in function.sriov.functions}
    names = {role.name for function, role in machine.with_role(Interface) if function.address not in virtual}
    assert rails & names <= addressed
    changed = [one.address for one in ideal.functions() if drivers[one.address] != one.driver]
    assert len(changed) <= 1, "one GPU at most has another driver"


def test_what_hardware_allows_is_untidy() -> None:
    machine, ideal = load_profile("dgx-h100-untidy"), load_profile("dgx-h100")
    before = {function.address: function for function in ideal.functions()}
    others = {one.address: one for one in machine.functions() if before.get(one.address) != one}
    held = [one for one in others.values() if one.driver == "pci-stub" and one.id.vendor == 0x10DE]
    assert len(held) == 1 and held[0].roles == ()
    (parent,) = [one for one in others.values() if one.sriov and one.sriov.functions]
    assert parent.sriov is not None
    assert [one.driver for one in parent.sriov.functions] == ["mlx5_core", "vfio-pci"]
    dead = [function for function, role in machine.with_role(Interface) if not role.cable]
    assert len(dead) == 1
    assert [role.without_cable for role in dead[0].roles if isinstance(role, RdmaDevice)] == [frozenset({1})]


def test_rails_of_a_routed_fabric_have_their_routes_in_the_main_table_or_in_one_of_their_own() -> None:
    machine = load_profile("gb200-nvl-untidy")
    assert machine.network is not None
    rails = {
        route.interface: (route.destination, route.table)
        for route in machine.network.routes
        if route.gateway is not None and route.gateway.startswith("172.16.")
    }
    assert rails == {
        "enp20f0np0": ("172.16.0.0/12", MAIN_TABLE),
        "enp20f1np1": ("0.0.0.0/0", 101),
        "enp30f0np0": ("172.16.0.0/12", MAIN_TABLE),
        "enp30f1np1": ("0.0.0.0/0", 103),
    }


def is_default(route: Route) -> bool:
    return route.destination in ("0.0.0.0/0", "::/0") and route.table == MAIN_TABLE


def is_new(function: Function, ideal: Machine) -> bool:
    return function.address not in {one.address for one in ideal.functions()}


def is_rail(function: Function) -> bool:
    return any(isinstance(role, RdmaDevice) for role in function.roles)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown profile 'dgx-h10-untidy'") as refused:
        load_profile("dgx-h10-untidy")
    assert refused.value.hint == "did you mean dgx-h100-untidy?"


def test_an_unplugged_member_leaves_its_bond_and_comes_back(tmp_path: Path) -> None:
    root = tmp_path / "host"
    host = build("cpu-only-untidy", root)
    bond = host.sysfs / "class/net/bond0"
    assert (bond / "bonding/slaves").read_text() == "eno1np0 eno2np1\n"
    member, first = host.sysfs / "class/net/eno2np1", host.sysfs / "class/net/eno1np0"
    assert (member / "address").read_text() == (first / "address").read_text() == (bond / "address").read_text()
    assert (member / "bonding_slave/perm_hwaddr").read_text() != (member / "address").read_text()
    inject.unplug(root, "eno2np1")
    assert (bond / "bonding/slaves").read_text() == "eno1np0\n"
    assert not os.path.lexists(bond / "lower_eno2np1")
    inject.replug(root, "0000:3b:00.1")
    assert (bond / "bonding/slaves").read_text() == "eno1np0 eno2np1\n"
    assert (host.sysfs / "class/net/eno2np1/master").resolve() == bond.resolve()


def test_a_member_whose_driver_is_unbound_leaves_its_bond(tmp_path: Path) -> None:
    root = tmp_path / "host"
    host = build("cpu-only-untidy", root)
    kernel, address = SimulatedKernel(root), "0000:3b:00.1"
    bond = host.sysfs / "class/net/bond0"
    kernel.write(f"bus/pci/devices/{address}/driver/unbind", address)
    assert (bond / "bonding/slaves").read_text() == "eno1np0\n"
    assert not os.path.lexists(bond / "lower_eno2np1")
    assert not os.path.lexists(host.sysfs / "class/net/eno2np1")
    kernel.write("bus/pci/drivers_probe", address)
    assert (bond / "bonding/slaves").read_text() == "eno1np0 eno2np1\n"


def test_a_bond_without_members_has_no_link(tmp_path: Path) -> None:
    root = tmp_path / "host"
    host = build("vm-1gpu-untidy", root)
    net = host.sysfs / "class/net"
    assert [(net / name / "operstate").read_text() for name in ("bond0", "bond0.100")] == ["up\n", "up\n"]
    inject.unplug(root, "ens5")
    assert [(net / name / "operstate").read_text() for name in ("bond0", "bond0.100")] == ["down\n", "down\n"]
    assert (net / "bond0/bonding/slaves").read_text() == ""
    tentative = [line.split()[4] for line in (host.proc / "net/if_inet6").read_text().splitlines() if "bond0" in line]
    assert tentative == ["c0"], "the configured address, without a link-local one"
