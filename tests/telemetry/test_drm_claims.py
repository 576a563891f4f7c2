"""Claims on GPUs whose drivers count by client of DRM: the values of a sampler, from /proc to `dra-agent top`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.inventory.api import Attribute
from dra_agent.inventory.model import Device, Inventory, device_name
from dra_agent.prepare.ledger import LedgerEntry
from dra_agent.telemetry.control import ClaimValues, current_values
from dra_agent.telemetry.sampler import Sampler
from dra_agent.telemetry.sources import drm_processes
from dra_agent.telemetry.sources.drm_processes import DrmProcesses
from dra_simulate import processes
from telemetry.rig import PODS, cgroup_of, recorded

ADDRESS = "0000:0c:00.0"
GPU = device_name("gpu", ADDRESS)
NS_PER_S = 1_000_000_000
INTERVAL_S = 10.0
KINDS = {"amd": ("amdgpu", "gfx"), "intel": ("i915", "render")}


class Node:
    """A node with one GPU, and clocks that tests set."""

    def __init__(self, root: Path, vendor: str, *, shared: bool) -> None:
        self.root = root
        self.vendor = vendor
        self.now_s = 1000.0
        self.entries: list[LedgerEntry] = []
        for folder in ("proc", "state"):
            (root / folder).mkdir()
        attributes = {"memoryEnforcement": Attribute.of("none")} if shared else {}
        self.inventory = Inventory(
            devices=(Device(GPU, "gpu", vendor, ADDRESS, attributes, allow_multiple_allocations=shared),)
        )
        self.function = root / "sys/bus/pci/devices" / ADDRESS
        self.energy(0)
        self.sampler = Sampler(
            Host(root / "sys", root / "dev", root / "proc"),
            root / "state",
            "boot",
            INTERVAL_S,
            inventory=lambda: self.inventory,
            entries=lambda: list(self.entries),
            pods=lambda: {f"uid-{name}": frozenset({uid}) for name, uid in PODS.items() if name != "late"},
            now=lambda: self.now_s,
        )

    def energy(self, joules: int) -> None:
        folder = self.function / "hwmon/hwmon1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "name").write_text(f"{KINDS[self.vendor][0]}\n")
        (folder / "energy1_input").write_text(f"{joules * 1_000_000}\n")

    def work(self, pid: int, pod: str, seconds: float) -> None:
        """Let a process of a pod have used the GPU for so long."""
        driver, engine = KINDS[self.vendor]
        if not (self.root / "proc" / str(pid)).exists():
            processes.run(self.root, pid, cgroup_of(pod))
        processes.open_drm(self.root, pid, 3, driver, ADDRESS, pid, {engine: round(seconds * NS_PER_S)})

    def sample(self) -> dict[str, ClaimValues]:
        """Sample, and return what `dra-agent top` has of each claim."""
        self.now_s += INTERVAL_S
        self.sampler.sample()
        found = current_values("n", INTERVAL_S, 0, self.sampler.snapshot(), self.inventory, self.entries)
        return {one.name: one for one in found.claims}

    def utilization(self) -> dict[str, float | None]:
        return {name: one.values.gpu_utilization_ratio for name, one in self.sample().items()}


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Node]]:
    """The nodes of a test; their processes are read with the clock of the first."""
    made: list[Node] = []
    monkeypatch.setattr(drm_processes, "make", lambda host: DrmProcesses(host, elapsed=lambda: made[0].now_s))
    yield made
    for node in made:
        node.sampler.stop()


@pytest.mark.parametrize("vendor", KINDS)
def test_claims_that_share_a_gpu_have_the_time_of_their_processes(
    tmp_path: Path, nodes: list[Node], vendor: str
) -> None:
    node = Node(tmp_path, vendor, shared=True)
    nodes.append(node)
    node.entries = [recorded(name, GPU, f"share-{name}") for name in ("a", "b")]
    node.work(11, "a", 0)
    node.work(12, "b", 0)
    assert node.utilization() == {"a": None, "b": None}
    for first, second, expected in ((3, 6, {"a": 0.3, "b": 0.6}), (5, 6, {"a": 0.2, "b": 0}), (5, 6, {"a": 0, "b": 0})):
        node.work(11, "a", first)
        node.work(12, "b", second)
        assert node.utilization() == pytest.approx(expected)
    node.work(13, "late", 1.0)
    assert node.utilization() == {"a": None, "b": None}, "its pod may have joined either claim"
    assert node.sampler.snapshot().failures == ()


def test_a_claim_on_a_whole_gpu_of_intel_has_all_values_of_the_gpu_too(tmp_path: Path, nodes: list[Node]) -> None:
    node = Node(tmp_path, "intel", shared=False)
    nodes.append(node)
    node.entries = [recorded("a", GPU, None)]
    node.work(11, "a", 0)
    assert node.sample()["a"].idle_seconds is None
    for joules, seconds, part in ((700, 2.5, 0.25), (800, 2.5, 0.0), (900, 12.5, 1.0)):
        node.energy(joules)
        node.work(11, "a", seconds)
        found = node.sample()["a"]
        assert found.values.gpu_utilization_ratio == pytest.approx(part)
        assert found.values.energy_joules == joules
    assert found.idle_seconds == INTERVAL_S
    assert node.sampler.snapshot().samples[GPU].gpu_utilization_ratio is None, "the driver has none of the GPU"


def test_a_lie_is_named(tmp_path: Path, nodes: list[Node]) -> None:
    node = Node(tmp_path, "intel", shared=True)
    nodes.append(node)
    node.entries = [recorded("a", GPU, "share-a")]
    node.work(11, "a", 0)
    node.sample()
    node.work(11, "a", 20)
    assert node.utilization() == {"a": None}
    (failure,) = node.sampler.snapshot().failures
    assert "engines of the kind render for 20 in 10" in failure.message


def test_a_partition_is_not_read(tmp_path: Path, nodes: list[Node]) -> None:
    node = Node(tmp_path, "amd", shared=True)
    nodes.append(node)
    partition = device_name("gpu", ADDRESS, "cpx", 0)
    node.inventory = Inventory(devices=(Device(partition, "gpu", "amd", ADDRESS, {}),))
    node.entries = [recorded("a", partition, None)]
    node.work(11, "a", 0)
    node.sample()
    node.work(11, "a", 5)
    assert node.utilization() == {"a": None}
