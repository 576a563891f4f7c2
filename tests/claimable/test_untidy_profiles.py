"""The properties of random hosts, for the untidy siblings of all profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from claimable.properties import divided, taken_from_host, unexplained, useless, without_nodes
from dra_agent.inventory.collector import collect
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
