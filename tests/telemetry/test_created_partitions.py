"""MIG partitions that the agent creates for claims: their values are known while the claim exists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import dra_simulate
from deadlines import a_minute
from dra_agent.claim import ClaimDevice
from dra_agent.device_setup.mig import MigConfig, MigSetup
from dra_agent.host import Host
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.inventory.tracker import diff
from dra_agent.prepare.ledger import LedgerEntry
from dra_agent.prepare.record import ClaimRecord, SetupRecord
from dra_agent.prepare.setup import SetupDevice
from dra_simulate import inject
from dra_simulate.nvml import LoadStep
from eventually import DEADLINE_S
from inventory.pair import ADDRESS, NAME, PAIR
from telemetry.rig import Rig, claim, held

FIRST, SECOND = f"{NAME}-mig-1g-10gb-0", f"{NAME}-mig-3g-40gb-4"
GIB = 1 << 30
STEP_S = 1000.0
MIG_RULE = PartitionRule(when='device.attributes["dra-agent.internal"].type == "gpu"', mode="mig")


class Site:
    """Two H100 that are offered in partitions, with telemetry, and the set-up that creates them."""

    def __init__(self, root: Path) -> None:
        self.root, state = root / "host", root / "state"
        state.mkdir()
        built = dra_simulate.build_machine(PAIR, self.root)
        host = Host(built.sysfs, built.dev, built.proc, built.nvml_library, state=state)
        self.rig = Rig(host, state, InventorySettings(partition=(MIG_RULE,)))
        self.setup = MigSetup(host, DEADLINE_S)

    def prepare(self, name: str, partition: str) -> dict[str, int]:
        """Create a partition for a claim; returns the ids of its instances as `gi` and `ci`."""
        device = self.rig.inventory.device(partition)
        assert device is not None
        requested = ClaimDevice("node-1/gpu", partition, ("r",))
        outcome = self.setup.set_up(f"uid-{name}", [SetupDevice(requested, device)], MigConfig(), None, a_minute())
        step = SetupRecord(*self.setup.kind, (partition,), done=True, record=outcome.record)
        payload = msgspec.to_builtins(ClaimRecord((requested,), (step,)))
        entry = claim(name, held(partition), held(NAME, share=partition, shared=True))
        self.rig.entries = [*self.rig.entries, msgspec.structs.replace(entry, payload=payload)]
        found: dict[str, int] = outcome.record[partition]
        return found

    def release(self, name: str, partition: str) -> None:
        """Destroy the partition of a claim and remove the claim, in this order, as the agent does."""
        self.setup.tear_down(f"uid-{name}", [partition], None, a_minute())
        self.rig.entries = [one for one in self.rig.entries if one.name != name]

    def use(self, pid: int, gib: int, ids: dict[str, int]) -> None:
        """Let a process use memory of an instance."""
        gpu_instance, compute_instance = ids["gi"], ids["ci"]
        inject.start_process(
            self.root, ADDRESS, pid, gib * GIB, PAIR, gpu_instance=gpu_instance, compute_instance=compute_instance
        )

    def play(self, percent: int, ids: dict[str, int]) -> None:
        """Let an instance compute."""
        steps = (LoadStep(at_ms=0, utilization=(percent, percent)),)
        inject.play(self.root, ADDRESS, steps, PAIR, gpu_instance=ids["gi"])

    def sample(self) -> None:
        inject.skip(self.root, STEP_S)
        self.rig.sample()

    def value(self, metric: str, name: str, partition: str) -> float | None:
        return self.rig.of_claim(metric, name, partition)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    inject.clear(made.root)
    made.rig.close()


def test_claims_on_created_partitions_have_their_own_values(site: Site) -> None:
    ids = {FIRST: site.prepare("small", FIRST), SECOND: site.prepare("large", SECOND)}
    site.use(4711, 3, ids[FIRST])
    site.use(4712, 20, ids[SECOND])
    site.play(90, ids[FIRST])
    site.play(0, ids[SECOND])
    # The inventory is that of before: values do not wait for the next one.
    site.sample()
    site.sample()
    assert site.value("memory_used_bytes", "small", FIRST) == 3 * GIB
    assert site.value("memory_used_bytes", "large", SECOND) == 20 * GIB
    assert site.value("gpu_utilization_ratio", "small", FIRST) == pytest.approx(0.9)
    assert site.value("gpu_utilization_ratio", "large", SECOND) == 0
    assert site.value("idle_seconds_total", "small", FIRST) == 0
    assert site.value("idle_seconds_total", "large", SECOND) == site.rig.interval_s
    assert site.value("power_watts", "small", FIRST) is None, "that of the GPU"
    assert site.rig.sampler.snapshot().failures == ()


def test_the_values_of_a_partition_end_with_its_claim(site: Site) -> None:
    site.use(4711, 3, site.prepare("first", FIRST))
    site.sample()
    assert site.value("memory_used_bytes", "first", FIRST) == 3 * GIB
    inject.end_process(site.root, 4711)
    site.release("first", FIRST)
    site.sample()
    snapshot = site.rig.sampler.snapshot()
    assert FIRST not in snapshot.samples and snapshot.failures == ()
    ids = site.prepare("second", FIRST)
    site.play(40, ids)
    site.sample()
    assert site.value("memory_limit_bytes", "second", FIRST) is not None
    assert site.value("gpu_utilization_ratio", "second", FIRST) is None, "nothing is known of the time before"
    site.sample()
    assert site.value("gpu_utilization_ratio", "second", FIRST) == pytest.approx(0.4)
    assert site.rig.sampler.snapshot().failures == ()


class _EndsWhileRead(list[LedgerEntry]):
    """Claims that are released between the first time that the sampler reads them and the second one."""

    def __iter__(self) -> Iterator[LedgerEntry]:
        found = self.copy()
        self.clear()
        return iter(found)


def test_a_partition_that_is_removed_while_it_is_read_is_not_a_failure(site: Site) -> None:
    site.prepare("short", FIRST)
    site.setup.tear_down("uid-short", [FIRST], None, a_minute())
    site.rig.entries = _EndsWhileRead(site.rig.entries)
    site.rig.sample()
    assert not site.rig.entries
    assert site.rig.sampler.snapshot().failures == ()


def test_a_partition_that_another_program_removed_is_named(site: Site) -> None:
    site.prepare("victim", FIRST)
    site.setup.tear_down("uid-victim", [FIRST], None, a_minute())
    site.sample()
    assert [one.device for one in site.rig.sampler.snapshot().failures] == [FIRST]


def test_published_devices_do_not_depend_on_created_partitions(site: Site) -> None:
    before = site.rig.inventory
    site.prepare("small", FIRST)
    site.sample()
    change = diff(before, site.rig.scan())
    assert (change.added, change.removed, change.changed) == ((), (), ())
