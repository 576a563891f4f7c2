"""The inventory of random hosts: every device is explained, none is useless, and none is taken from the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from claimable.claims import received, unusable
from claimable.fleet import Fleet, fleet
from claimable.hosts import MAX_FUNCTIONS, RandomHost, catalog, random_host, smallest
from claimable.properties import uses
from dra_agent.claimable.network_files import read
from dra_agent.claimable.network_view import NetworkView
from dra_agent.claimable.use import host_use
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Inventory
from dra_agent.topology import PciFunction, scan
from tiers import CASES

FEW, MANY = 600, 10_000
FILE_SAMPLE = range(24)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("fleet")) as made:
        yield made


def test_random_hosts_have_the_properties(hosts: Fleet) -> None:
    assert hosts.failures(range(FEW)) == {}


@CASES
def test_many_random_hosts_have_the_properties(hosts: Fleet) -> None:
    assert hosts.failures(range(FEW, MANY)) == {}


def test_the_order_of_hosts_does_not_matter(hosts: Fleet) -> None:
    sample = [random_host(seed) for seed in range(60)]
    forward = [decisions(hosts.inventory(host)) for host in sample]
    backward = [decisions(hosts.inventory(host)) for host in reversed(sample)]
    assert forward == backward[::-1]


def _without_ports(view: NetworkView) -> NetworkView:
    structs = msgspec.structs
    alone = {name: structs.replace(one, master=None, uppers=()) for name, one in view.interfaces.items()}
    return structs.replace(view, interfaces=alone)


def test_an_agent_that_ignores_masters_and_uppers_is_found(hosts: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "change", _without_ports)
    assert any("in use: nic-" in line for found in hosts.failures(range(20)).values() for line in found)


def test_an_agent_without_a_table_of_drivers_is_found(hosts: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.claimable.decide.driver_facts", lambda driver, kind: None)
    assert any("useless: gpu-" in line for found in hosts.failures(range(40)).values() for line in found)


def test_an_agent_that_drops_exclusions_is_found(hosts: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = hosts.inventory
    monkeypatch.setattr(hosts, "inventory", lambda host: msgspec.structs.replace(whole(host), excluded=()))
    assert any("not explained: " in line for found in hosts.failures(range(20)).values() for line in found)


@pytest.mark.parametrize("seed", FILE_SAMPLE)
def test_files_of_a_host_show_what_its_description_says(seed: int, hosts: Fleet, tmp_path: Path) -> None:
    described = random_host(seed)
    roots = described.build(tmp_path / "host")
    topology = scan(roots)
    ports = catalog(iommu=described.iommu).ports
    found = [one for one in topology.devices if one.pci_address not in ports]
    assert list(map(comparable, found)) == list(map(comparable, described.functions))
    view = read(roots.sysfs, roots.proc / "net", float("inf"), 1000)
    shown = {name: use and use.code for name in described.view.interfaces for use in [host_use(view, name)]}
    known = {name: use and use.code for name in shown for use in [host_use(described.view, name)]}
    # Files do not show an IPv4 address of an interface that is switched off.
    assert shown == {
        name: None if code == "host-address" and is_off(described, name) else code for name, code in known.items()
    }
    if described.machine.nvidia is None:  # the library of each host starts slowly
        inventory = collect(roots, topology)
        assert shown != known or decisions(inventory) == decisions(hosts.inventory(described))
        nodes = received(roots, inventory, tmp_path)
        assert [device.name for device in inventory.devices if unusable(device, nodes[device.name])] == []


def is_off(host: RandomHost, name: str) -> bool:
    """Return True if it has IPv4 addresses only, and no route to their networks."""
    interface = host.view.interfaces[name]
    return interface.connected_route is None and not any(":" in address for address in interface.addresses)


def decisions(inventory: Inventory) -> tuple[dict[str, str], dict[str, str]]:
    """Return published devices by name with their health, and excluded ones with the code."""
    return {one.name: one.health for one in inventory.devices}, {one.name: one.code for one in inventory.excluded}


def comparable(function: PciFunction) -> PciFunction:
    """The function without the number of its KFD node, which counts those of the whole host."""
    return msgspec.structs.replace(function, kfd=None if function.kfd is None else 0)


def test_a_seed_determines_a_host_and_hosts_differ() -> None:
    hosts = [random_host(seed) for seed in range(3000)]
    assert hosts[:50] == [random_host(seed) for seed in range(50)]
    assert {which for host in hosts for which in host.chosen} == set(range(len(catalog(iommu=True).parts)))
    assert {host.iommu for host in hosts} == {True, False}
    assert {one.kind for host in hosts for one in host.network.interfaces} == {
        "bond",
        "team",
        "bridge",
        "vlan",
        "vrf",
        "macvlan",
        "ipvlan",
        "openvswitch",
    }
    # A part is taken whole, so the first one may be larger than the number of functions that was drawn.
    assert max(len(host.descriptions) for host in hosts) <= MAX_FUNCTIONS
    assert sum(bool(uses(host.network)) for host in hosts) > len(hosts) // 4


def test_a_host_that_fails_is_reduced_to_what_fails() -> None:
    def has_a_stacked_bond(host: RandomHost) -> bool:
        return any(one.kind == "bond" for one in host.network.interfaces)

    host = next(host for host in map(random_host, range(MANY)) if has_a_stacked_bond(host) and len(host.chosen) > 3)
    small = smallest(host, has_a_stacked_bond)
    assert len(small.chosen) == 1
    assert [one.kind for one in small.network.interfaces] == ["bond"]
    assert (small.network.addresses, small.network.routes) == ((), ())
