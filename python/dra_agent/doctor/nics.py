"""Checks of NICs that the agent excludes because the host uses them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from dra_agent.claimable.network import HostNetwork
from dra_agent.claimable.network_view import NetworkView, Route
from dra_agent.claimable.use import host_use, rail_route
from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, warning
from dra_agent.printable import printable
from dra_agent.topology import DeviceKind, PciFunction


def check_nics(context: CheckContext) -> Iterator[Finding]:
    """Name the NICs with RDMA that only a route with a gateway excludes: rails of a routed fabric have one."""
    topology, inventory = context.topology, context.inventory
    if topology is None or inventory is None:
        return
    excluded = {one.pci_address: one.name for one in inventory.excluded if one.code == "host-interface"}
    found = [one for one in topology.relevant if one.pci_address in excluded and _may_be_rail(one)]
    if not found:
        return
    network = HostNetwork(context.host)
    try:
        view = network.view([])
    finally:
        network.close()
    rails = {one.pci_address: routes for one in found if (routes := _rail_routes(view, one.net))}
    if not rails:
        return
    shown = [f"{printable(name, line=True)} ({route})" for routes in rails.values() for name, route in routes.items()]
    # TOML's literal strings need no escapes for CEL's quotes.
    rule = f'device.attributes["resource.kubernetes.io"].pciBusID in {json.dumps(list(rails))}'
    yield warning(
        f"{len(rails)} NIC{'' if len(rails) == 1 else 's'} with RDMA cannot be claimed, only because routes with a "
        f"gateway lead through their interfaces, as in a routed fabric: {', '.join(shown)}",
        ", ".join(excluded[address] for address in rails),
        f"if they carry no traffic of the host itself, allow them in [inventory]: host_interfaces = ['{rule}']; claims "
        "then get their RDMA devices, and the host keeps interfaces, addresses and routes "
        "(docs/how-to/devices/inventory.md)",
    )


def _may_be_rail(function: PciFunction) -> bool:
    # With virtual functions, those are to be claimed.
    is_divided = function.sriov is not None and function.sriov.num_vfs > 0
    return function.kind is DeviceKind.NIC and bool(function.infiniband) and not is_divided


def _rail_routes(view: NetworkView, names: Sequence[str]) -> dict[str, Route]:
    """Return the routes by interface; none if the host uses an interface in another way, too."""
    routes = {}
    for name in names:
        use = host_use(view, name)
        if use is None or use.code != "host-interface":
            continue
        if (route := rail_route(view, name)) is None:
            return {}
        routes[name] = route
    return routes
