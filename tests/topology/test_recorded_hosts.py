"""Recorded machines of other projects: what the scan says of them must be what is known of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.topology import Distance, Kind, Topology, scan


def read(tree: Path) -> Topology:
    return scan(Host(sysfs=tree / "sys"))


@pytest.mark.parametrize("recorded_host", ["hwloc-8ve"], indirect=True)
def test_eight_vector_engines_behind_two_switches(recorded_host: Path) -> None:
    topology = read(recorded_host)
    assert topology.problems == ()
    assert Counter(device.kind for device in topology.wanted) == {Kind.ACCELERATOR: 8, Kind.NIC: 4}
    assert Counter(topology.distances.values()) == {Distance.PIX: 21, Distance.NODE: 45}
    switches = Counter(device.pcie_switch for device in topology.wanted)
    assert switches == {"0000:18:00.0": 5, "0000:3b:00.0": 5, "0000:5e:00.0": 2}
