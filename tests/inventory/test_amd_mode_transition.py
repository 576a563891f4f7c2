"""The inventory of a GPU whose compute partition mode is being changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.inventory.amd.mode_transition import SETTLE_TIMEOUT_S
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.mode_changes import ModeChanges
from dra_agent.inventory.model import Inventory
from dra_agent.topology import scan
from dra_simulate import build_machine
from dra_simulate.kernel import SimulatedKernel
from eventually import DEADLINE_S
from inventory.incomplete_nodes import MODE, incomplete_nodes, unread, was_read
from inventory.test_amd_modes import DIVISIBLE, machine

FIRST, SECOND = "0000:11:00.0", "0000:12:00.0"
PER_GPU = 15
LIMIT_S = 10 * DEADLINE_S


class SteadyClock:
    """The monotonic clock of the inventory, which stands still until the test advances it."""

    def __init__(self) -> None:
        self._now_s = 1000.0

    def monotonic(self) -> float:
        return self._now_s

    def pass_(self, seconds: float) -> None:
        self._now_s += seconds


class Bench:
    def __init__(self, root: Path) -> None:
        self.clock = SteadyClock()
        self.host: Host = build_machine(machine(), root)
        self.changes = ModeChanges()
        self.collector = Collector(self.host, DIVISIBLE, mode_changes=self.changes)
        self._kernel = SimulatedKernel(root, machine())

    def divide(self, mode: str, address: str = FIRST) -> None:
        """As an administrator does it with amd-smi."""
        self._kernel.write(f"bus/pci/devices/{address}/{MODE}", mode)

    def collect(self) -> Inventory:
        return self.collector.collect(scan(self.host))

    def collect_until_withdrawn(self) -> tuple[Inventory, float]:
        """Collect once a second, as the agent does; return the last inventory, and how long the GPU was published."""
        for seconds in range(100):
            if not of(inventory := self.collect(), FIRST):
                return inventory, float(seconds)
            self.clock.pass_(1.0)
        raise AssertionError("a GPU whose nodes stay incomplete is offered for ever")


def of(inventory: Inventory, address: str) -> list[str]:
    return [device.name for device in inventory.devices if device.pci_address == address]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(tmp_path / "host")
    for module in ("amd.backend", "amd.mode_transition", "mode_changes"):
        monkeypatch.setattr(f"dra_agent.inventory.{module}.time", made.clock)
    yield made
    made.collector.close()


@pytest.mark.parametrize("left", [0, 1, 2, 7])
def test_a_gpu_that_is_partitioned_outside_is_described_as_before_until_it_is_complete(bench: Bench, left: int) -> None:
    before = bench.collect()
    bench.divide("CPX")
    with incomplete_nodes(bench.host, FIRST, left=left):
        assert bench.collect() == before, "devices, counters and problems are those of before the change"
        assert bench.collector.lost_event_stream(), "and the next collection is due soon"
        assert not bench.collector.lost_event_stream(), "which is reported once"
    assert bench.collect() == before
    assert not bench.collector.lost_event_stream(), "nothing more is to be seen"


def test_nodes_of_both_modes_change_no_counters_of_any_gpu(bench: Bench) -> None:
    before = bench.collect()
    bench.divide("CPX")
    node = next((bench.host.sysfs / "class/kfd/kfd/topology/nodes").glob("2/properties")).resolve()
    text = node.read_text()
    assert "num_xcc 1\n" in text
    node.chmod(0o644)
    node.write_text(text.replace("num_xcc 1\n", "num_xcc 8\n"))
    assert bench.collect() == before, "15 dies are none that a GPU has, and its twin has all of its 8"
    node.write_text(text)
    assert bench.collect() == before


def test_one_whose_nodes_stay_incomplete_is_a_problem_and_offered_in_no_other_way(bench: Bench) -> None:
    before = bench.collect()
    bench.divide("CPX")
    with incomplete_nodes(bench.host, FIRST, left=2):
        found, offered = bench.collect_until_withdrawn()
        assert offered >= SETTLE_TIMEOUT_S
        assert len(found.devices) == PER_GPU, (
            "the other GPU, and no partition that its claims' counters know nothing of"
        )
        (problem,) = found.problems
        assert problem.where == "gpu-0000-11-00-0" and "2 of its 8 dies" in problem.message
        assert [(one.name, one.code) for one in found.excluded] == [("gpu-0000-11-00-0", "incomplete-nodes")]
        assert [one.name for one in found.counter_sets["gpu"]] == ["gpu-0000-12-00-0"]
    assert bench.collect() == before, "it is offered again once it is whole"
    assert before.excluded == ()


def test_a_gpu_that_the_agent_partitions_is_not_read_and_keeps_its_description(bench: Bench) -> None:
    before = bench.collect()
    bench.changes.begin(FIRST, LIMIT_S)
    bench.divide("CPX")
    with incomplete_nodes(bench.host, FIRST, left=2):
        for address in (FIRST, SECOND):
            unread(bench.host, address)
        assert bench.collect() == before
        assert not was_read(bench.host, FIRST), "a read of the mode waits for the driver that is changing it"
        assert was_read(bench.host, SECOND)
        bench.changes.answered(FIRST)
        bench.clock.pass_(SETTLE_TIMEOUT_S * 1.2)
        assert bench.collect() == before, "nodes may come after the write"
        bench.changes.end(FIRST)
        assert bench.collect() == before, "the duration of the change does not shorten the time after it"
    assert bench.collect() == before


def test_a_change_of_the_agent_that_never_ends_is_a_problem_after_its_deadline(bench: Bench) -> None:
    bench.collect()
    bench.changes.begin(FIRST, 0.1)
    with incomplete_nodes(bench.host, FIRST, left=0):
        unread(bench.host, FIRST)
        found, _ = bench.collect_until_withdrawn()
        assert len(of(found, SECOND)) == PER_GPU
        assert ["0 of its 8 dies" in problem.message for problem in found.problems] == [True]
        assert not was_read(bench.host, FIRST), "the driver does not answer yet: a read would hang"


def test_a_gpu_whose_nodes_are_incomplete_when_the_agent_starts_is_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.inventory.amd.partitionable.SETTLE_TIMEOUT_S", LIMIT_S)
    whole = bench.collect()
    bench.divide("CPX")
    later = Collector(bench.host, DIVISIBLE)
    topology = scan(bench.host)
    hidden, shown = threading.Event(), threading.Event()

    def driver() -> None:
        with incomplete_nodes(bench.host, FIRST, left=2):
            (bench.host.sysfs / "bus/pci/devices" / FIRST / MODE).write_text("SPX\n")
            hidden.set()
            shown.wait(0.5)
        (bench.host.sysfs / "bus/pci/devices" / FIRST / MODE).write_text("CPX\n")

    thread = threading.Thread(target=driver)
    thread.start()
    try:
        assert hidden.wait(LIMIT_S)
        assert later.collect(topology) == whole
    finally:
        shown.set()
        thread.join()
        later.close()


def test_one_whose_nodes_stay_incomplete_from_the_start_is_not_offered(bench: Bench) -> None:
    bench.divide("CPX")
    (bench.host.sysfs / "bus/pci/devices" / FIRST / MODE).write_text("SPX\n")
    found = bench.collect()
    assert (of(found, FIRST), len(of(found, SECOND))) == ([], PER_GPU)
    (problem,) = found.problems
    assert "another mode than it is in" in problem.message
    assert [one.code for one in found.excluded] == ["incomplete-nodes"]
    (bench.host.sysfs / "bus/pci/devices" / FIRST / MODE).write_text("CPX\n")
    assert len(of(bench.collect(), FIRST)) == PER_GPU


def test_a_gpu_that_was_taken_out_is_not_kept(bench: Bench) -> None:
    bench.collect()
    with incomplete_nodes(bench.host, FIRST, left=0):
        (bench.host.sysfs / "bus/pci/devices" / FIRST).unlink()
        found = bench.collect()
    assert (of(found, FIRST), len(of(found, SECOND))) == ([], PER_GPU)
