"""The doctor reports NICs with RDMA that only a route with a gateway excludes, with a rule that allows them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dra_agent.claimable.network_view import Interface, NetworkView, Route
from dra_agent.claimable.use import rail_route
from dra_agent.doctor import CheckContext, Finding
from dra_agent.doctor.finding import Severity
from dra_agent.doctor.nics import check_nics
from dra_agent.inventory.collector import collect
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology import scan
from dra_simulate import host_network
from dra_simulate.builder import build_machine
from dra_simulate.host_network import Address, Bond, HostNetwork, Vlan
from dra_simulate.machine import HostBridge, Machine, NumaNode
from dra_simulate.parts.network import broadcom, connectx6dx

RAILS = ("rail0", "rail1")
ADDRESSES = tuple(Address(name, f"172.16.{number}.10/24") for number, name in enumerate(RAILS))
UPLINK = host_network.Route("0.0.0.0/0", "eno1", "192.0.2.1")
ROUTED = tuple(
    host_network.Route("172.16.0.0/12", name, f"172.16.{number}.1", number + 1) for number, name in enumerate(RAILS)
)
Examine = Callable[..., CheckContext]


@pytest.fixture
def examine(tmp_path: Path) -> Examine:
    """Scan a host with an uplink without RDMA and two adapters with RDMA, in this network and configuration."""
    functions = (
        broadcom("0000:01:00.0", "eno1", 2, machine="rails"),
        *(
            connectx6dx(f"0000:0{2 + number}:00.0", number, name, 3 + number, machine="rails")
            for number, name in enumerate(RAILS)
        ),
    )

    def examined(network: HostNetwork, settings: InventorySettings | None = None, virtual: int = 0) -> CheckContext:
        uplink, first, second = functions
        if virtual:
            first = connectx6dx(first.address, 0, RAILS[0], 3, machine="rails", virtual=virtual)
        host = build_machine(
            Machine(
                name="rails",
                description="two adapters with RDMA",
                nodes=(NumaNode("0-7", 1 << 30, (10,)),),
                bridges=(HostBridge("pci0000:00", 0, (uplink, first, second)),),
                network=network,
            ),
            tmp_path / "host",
        )
        topology = scan(host)
        return CheckContext(host=host, topology=topology, inventory=collect(host, topology, settings), simulated=True)

    return examined


def warnings(context: CheckContext) -> list[Finding]:
    findings = list(check_nics(context))
    assert all(finding.severity is Severity.WARNING for finding in findings)
    return findings


def test_routed_rails_are_reported_with_the_rule_that_allows_them(examine: Examine) -> None:
    network = HostNetwork(addresses=ADDRESSES, routes=(UPLINK, *ROUTED))
    (finding,) = warnings(examine(network))
    assert finding.where == "nic-0000-02-00-0, nic-0000-03-00-0"
    assert "rail0 (the route 172.16.0.0/12 via 172.16.0.1), rail1" in finding.message
    rule = finding.hint[finding.hint.index("host_interfaces = ") :].partition("]'")[0] + "]']"
    settings = InventorySettings(host_interfaces=tuple(tomllib.loads(rule)["host_interfaces"]))
    allowed = examine(network, settings)
    assert allowed.inventory is not None
    assert [device.name for device in allowed.inventory.devices] == ["nic-0000-02-00-0", "nic-0000-03-00-0"]
    assert warnings(allowed) == []


@pytest.mark.parametrize(
    "network",
    [
        HostNetwork(),
        HostNetwork(addresses=ADDRESSES, routes=(UPLINK,)),
        HostNetwork(routes=tuple(replace(UPLINK, interface=name) for name in RAILS)),
        HostNetwork((Bond(name="bond0", index=9, ports=RAILS),), routes=ROUTED),
        HostNetwork(
            tuple(Vlan(name=f"{name}.7", index=9, parent=name, vlan_id=7) for name in RAILS[:1]), routes=ROUTED[:1]
        ),
    ],
    ids=["idle", "addresses only", "uplinks", "bond", "VLAN"],
)
def test_a_nic_that_carries_the_hosts_traffic_is_not_reported(examine: Examine, network: HostNetwork) -> None:
    assert warnings(examine(network)) == []


def test_an_adapter_with_virtual_functions_is_not_reported(examine: Examine) -> None:
    (finding,) = warnings(examine(HostNetwork(addresses=ADDRESSES, routes=ROUTED), virtual=1))
    assert finding.where == "nic-0000-03-00-0", "its functions are to be claimed instead"


def test_a_host_that_cannot_be_scanned_is_not_checked() -> None:
    assert list(check_nics(CheckContext())) == []


RAIL = Route("default", "172.16.0.1", 100)
STATIC = Route("172.16.0.0/12", "172.16.0.1")


@pytest.mark.parametrize(
    ("interface", "route"),
    [
        (Interface("rail0", default_route=RAIL), RAIL),
        (Interface("rail0", gateway_route=STATIC), STATIC),
        (Interface("rail0", default_route=Route("default", "192.0.2.1"), gateway_route=STATIC), None),
        # The file with IPv6 routes does not show their table.
        (Interface("rail0", default_route=Route("default", "fe80::1", None)), None),
        (Interface("rail0", default_route=RAIL, master="bond0"), None),
        (Interface("rail0", gateway_route=STATIC, uppers=("rail0.7",)), None),
        (Interface("rail0", connected_route=Route("10.1.2.0/24")), None),
        (Interface("other", gateway_route=STATIC), None),
    ],
)
def test_a_default_route_of_another_table_is_that_of_a_rail(interface: Interface, route: Route | None) -> None:
    assert rail_route(NetworkView({interface.name: interface}), "rail0") == route
