"""The rule of the documentation for the rails of a routed fabric."""

from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec

from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology import DeviceKind, Topology
from inventory.conftest import FunctionMaker

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/devices/inventory.md"
RULE = re.compile(r"^### Rails with a gateway\n.*?^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
HEADER = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"


def gateway_route(interface: str, network: str, gateway: str, mask: str) -> str:
    to, by, of = (int.from_bytes(socket.inet_aton(one), "little") for one in (network, gateway, mask))
    return f"{interface}\t{to:08X}\t{by:08X}\t0003\t0\t0\t0\t{of:08X}\t0\t0\t0"


def test_the_rule_of_the_page_publishes_rails_with_a_gateway_and_keeps_the_hosts_own_nic(
    host: Host,
    write: Callable[[str, object], None],
    function: FunctionMaker,
    topology_of: Callable[..., Topology],
) -> None:
    names = ("eno1", "rdma0", "rdma15")
    nics = [
        function(f"0000:{bus:02x}:00.0", DeviceKind.NIC, "0x15b3", "0x1021", net=(name,), infiniband=(f"mlx5_{bus}",))
        for bus, name in enumerate(names, 0x10)
    ]
    routes = [
        gateway_route("eno1", "0.0.0.0", "10.0.0.1", "0.0.0.0"),
        gateway_route("rdma0", "10.224.0.0", "10.224.0.1", "255.240.0.0"),
        gateway_route("rdma15", "0.0.0.0", "10.239.0.1", "0.0.0.0"),
    ]
    write("proc/net/route", "\n".join([HEADER, *routes]))
    for name in names:
        write(f"sys/class/net/{name}/flags", "0x1003")
    own, first, last = (f"nic-0000-{bus}-00-0" for bus in (10, 11, 12))

    without = collect(host, topology_of(*nics))
    assert without.devices == ()
    assert {one.name: one.code for one in without.excluded} == dict.fromkeys((own, first, last), "host-interface")

    (rule,) = RULE.findall(PAGE.read_text())
    settings = msgspec.convert(tomllib.loads(rule)["inventory"], InventorySettings)
    allowed = collect(host, topology_of(*nics), settings)
    assert [one.name for one in allowed.devices] == [first, last]
    assert all("via 10.2" in one.identity["host_use"] for one in allowed.devices), "no claim changes the interface"
    assert [(one.name, one.code) for one in allowed.excluded] == [(own, "host-interface")]
    assert allowed.problems == without.problems == ()
