"""The properties of random hosts, for the untidy siblings of all profiles."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from claimable.properties import divided, taken_from_host, unexplained, useless, without_nodes
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import RULE_ALLOWS
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology import scan
from dra_simulate import build, profiles
from dra_simulate.profiles import load_profile
from eventually import DEADLINE_S


@pytest.mark.parametrize("profile", [f"{profile}-untidy" for profile in profiles()])
def test_an_untidy_profile_has_the_properties(profile: str, tmp_path: Path) -> None:
    machine, roots = load_profile(profile), build(profile, tmp_path / "host")
    inventory = collect(roots, scan(roots), InventorySettings(nvml_timeout=DEADLINE_S))
    assert machine.network is not None
    functions = tuple(machine.functions())
    assert unexplained(functions, inventory) == []
    assert useless(functions, inventory) == []
    assert without_nodes(inventory) == []
    assert divided(functions, inventory) == []
    assert taken_from_host(functions, machine.network, inventory) == []


def test_routed_rails_are_excluded_as_far_as_the_files_show_their_routes(tmp_path: Path) -> None:
    """The first port of each adapter has its route in the main table, the second in a table of its own."""
    roots = build("gb200-nvl-untidy", tmp_path / "host")
    topology, settings = scan(roots), InventorySettings(nvml_timeout=DEADLINE_S)
    inventory = collect(roots, topology, settings)
    rails = {
        "nic-0006-03-00-0": "the host uses it: enp20f0np0 carries the route 172.16.0.0/12 via 172.16.0.1",
        "nic-0016-03-00-0": "the host uses it: enp30f0np0 carries the route 172.16.0.0/12 via 172.16.2.1",
    }
    excluded = {one.name: one.reason for one in inventory.excluded if one.code == "host-interface"}
    assert excluded.items() > rails.items()
    # /proc/net shows only the addresses of the others, which are used alongside: claims do not move them.
    shared = {one.name: one.identity["host_use"] for one in inventory.devices if "host_use" in one.identity}
    assert shared == {
        "nic-0006-03-00-1": "the host uses it: enp20f1np1 has the address 172.16.1.10/24",
        "nic-0016-03-00-1": "the host uses it: enp30f1np1 has the address 172.16.3.10/24",
    }
    rule = 'device.attributes["dra-agent.internal"].?ifName.orValue("").matches("^enp[23]0f0np0$")'
    allowed = collect(roots, topology, msgspec.structs.replace(settings, host_interfaces=(rule,)))
    permitted = {one.name: one.identity["host_use"] for one in allowed.devices if RULE_ALLOWS in one.identity}
    assert permitted == rails, "for RDMA: the host keeps the interfaces"
