"""MIG partitions made for claims and destroyed after them, through the simulated NVML, with crashes in every step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from deadlines import a_minute
from dra_agent import atomic_file, deadline
from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.device_setup.mig import MigConfig, MigSetup
from dra_agent.device_setup.mig import driver as drivers
from dra_agent.device_setup.mig import gpu as gpus
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_agent.inventory.nvidia.profiles import Placement
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.prepare.setup import SetupDevice, UnsuitableError
from dra_agent.topology import LiveTopology
from dra_simulate import build_machine, inject, mig
from dra_simulate.machine import HostBridge, Machine, NumaNode, NvidiaDriver
from dra_simulate.models import GIB, H100_SXM
from dra_simulate.nvml import Access
from dra_simulate.parts.nvidia import gpu
from eventually import DEADLINE_S, eventually
from inventory.mig_runtimes import DISTINCT

MACHINE = Machine(
    "pair",
    "for tests",
    (NumaNode("0-3", 8 * GIB, (10,)),),
    (
        HostBridge(
            "pci0000:00",
            0,
            tuple(gpu(f"0000:0{minor + 1}:00.0", H100_SXM, minor, machine="pair") for minor in range(2)),
        ),
    ),
    nvidia=NvidiaDriver("570.124.06", 12080),
)
FIRST, SECOND = "gpu-0000-01-00-0", "gpu-0000-02-00-0"
IN_USE, NO_ROOM = 19, 23


class World:
    """A host with two H100 that are offered in partitions, and set-ups that can be thrown away as by a crash."""

    def __init__(self, root: Path) -> None:
        self.root = root / "host"
        built = build_machine(MACHINE, self.root)
        self.host = Host(built.sysfs, built.dev, built.proc, built.nvml_library, state=root / "state")
        self.nvml = acquire(self.host.nvml_library, DEADLINE_S)
        self.setup = self.again()

    def again(self) -> MigSetup:
        """Replace the set-up by a new one, as an agent does that was restarted."""
        self.setup = MigSetup(self.host, DEADLINE_S)
        return self.setup

    def inventory(self, foreign: str = "keep") -> Inventory:
        rule = PartitionRule(
            when='device.attributes["dra-agent.internal"].type == "gpu"',
            mode="mig",
            foreign="destroy" if foreign == "destroy" else "keep",
        )
        collector = Collector(self.host, InventorySettings(partition=(rule,)))
        try:
            return collector.collect(LiveTopology(self.host).snapshot())
        finally:
            collector.close()

    def device(self, name: str, foreign: str = "keep") -> Device:
        found = self.inventory(foreign).device(name)
        assert found is not None, f"{name} is not offered"
        return found

    def exist(self, minor: int = 0) -> list[tuple[int, int, int]]:
        """List the instances of a GPU: profile, first slice, number of compute instances."""
        uuid = [device.uuid for device in _gpus()][minor]
        division = mig.read(self.root).get(uuid, mig.GpuPartitioning())
        return sorted((one.profile, one.start, len(one.compute_instances)) for one in division.gpu_instances)

    def mode(self, minor: int = 0) -> bool:
        return mig.read(self.root).get([device.uuid for device in _gpus()][minor], mig.GpuPartitioning()).mode

    def notes(self) -> list[str]:
        return sorted(path.name for path in (self.root.parent / "state/mig").glob("*"))

    def create_outside(self, profile: int, start: int, size: int, address: str = "0000:01:00.0") -> None:
        driver = drivers.MigDriver(self.nvml, self.host, address, {})
        if not driver.mode()[0]:
            driver.set_mode(True)
        instance = driver.make(profile, Placement(start, size))
        driver.create_compute(instance, None)


def _gpus() -> list[Any]:
    return [role for _, role in MACHINE.with_role(type(MACHINE.bridges[0].functions[0].roles[0]))]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    inject.clear(made.root)
    made.nvml.close()


def ask(device: Device) -> SetupDevice:
    return SetupDevice(ClaimDevice("n/gpu", device.name, ("gpu",)), device)


def test_a_partition_is_made_with_the_mode_and_destroyed_after(world: World) -> None:
    name = f"{FIRST}-mig-3g-40gb-4"
    device = world.device(name)
    parameters = world.setup.default(device)
    assert parameters is not None
    outcome = world.setup.set_up("u1", [ask(device)], parameters, None, a_minute())
    assert world.exist() == [(9, 4, 1)]
    edits = outcome.edits[name]
    (variable,) = edits.env
    key, _, uuid = variable.partition("=")
    assert key == "DRA_AGENT_DEVICE_GPU_0000_01_00_0_MIG_3G_40GB_4_UUID"
    assert uuid.startswith("MIG-")
    assert outcome.record[name]["uuid"] == uuid
    nodes = [node.path for node in edits.device_nodes] + [mount.container_path for mount in edits.mounts]
    assert len(nodes) == 2
    assert all(path.startswith("/dev/nvidia-caps/nvidia-cap") for path in nodes)
    world.setup.tear_down("u1", [name], outcome.record, a_minute())
    assert world.exist() == []
    assert world.notes() == []


def test_a_partition_that_its_driver_does_not_describe_waits(world: World) -> None:
    unknown = msgspec.structs.replace(world.device(f"{FIRST}-mig-3g-40gb-4"), identity={})
    with pytest.raises(RetryableError, match="its mig is not known now"):
        world.setup.set_up("u1", [ask(unknown)], MigConfig(), None, a_minute())
    assert world.exist() == []


def test_a_repeat_changes_nothing_and_restores_missing_instances(world: World) -> None:
    name = f"{FIRST}-mig-1g-10gb-6"
    device = world.device(name)
    first = world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    again = world.again().set_up("u1", [ask(device)], MigConfig(), first.record, a_minute())
    assert again == first
    driver = drivers.MigDriver(world.nvml, world.host, "0000:01:00.0", {})
    (instance,) = driver.instances()
    driver.destroy_compute(driver.compute_instances(instance)[0])
    driver.destroy(instance)
    repaired = world.setup.set_up("u1", [ask(device)], MigConfig(), first.record, a_minute())
    assert repaired.record != first.record
    assert world.exist() == [(19, 6, 1)]


def test_claims_do_not_change_the_published_devices(world: World) -> None:
    before = world.inventory()
    device = world.device(f"{FIRST}-mig-2g-20gb-2")
    world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    during = world.inventory()
    assert [one.to_api() for one in during.devices] == [one.to_api() for one in before.devices]
    assert during.counter_sets == before.counter_sets
    assert during.excluded == ()


def test_a_foreign_instance_is_offered_and_overlapping_partitions_are_not(world: World) -> None:
    world.create_outside(9, 4, 4)
    taken = world.inventory()
    foreign = taken.device(f"{FIRST}-mig-3g-40gb-4")
    assert foreign is not None
    assert foreign.attributes["uuid"].string is not None
    assert not foreign.consumes_counters
    assert "mig" not in foreign.identity
    assert taken.device(FIRST) is None
    assert taken.device(f"{FIRST}-mig-1g-10gb-6") is None
    assert taken.device(f"{FIRST}-mig-3g-40gb-0") is not None
    reasons = {one.name: one.reason for one in taken.excluded}
    assert "3g.40gb at memory slice 4" in reasons[FIRST]
    assert "3g.40gb at memory slice 4" in reasons[f"{FIRST}-mig-1g-10gb-6"]
    assert taken.device(SECOND) is not None
    with pytest.raises(UnsuitableError):
        world.setup.check(foreign, MigConfig())
    assert world.setup.default(foreign) is None


def test_an_instance_of_another_owner_is_never_destroyed(world: World) -> None:
    device = world.device(f"{FIRST}-mig-1g-10gb-6")
    whole = world.device(FIRST)
    world.create_outside(9, 4, 4)
    with pytest.raises(RetryableError, match="is in the way, and the agent did not create it"):
        world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    world.setup.roll_back("u1", [device.name], MigConfig(), a_minute())
    with pytest.raises(RetryableError, match="is in the way, and the agent did not create it"):
        world.setup.set_up("u2", [ask(whole)], MigConfig(), None, a_minute())
    assert world.exist() == [(9, 4, 1)]
    assert world.notes() == []


def test_an_instance_of_another_owner_is_destroyed_if_the_operator_wants_it(world: World) -> None:
    world.create_outside(9, 4, 4)
    device = world.device(f"{FIRST}-mig-1g-10gb-6", "destroy")
    world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    assert world.exist() == [(19, 6, 1)]


def test_mig_mode_is_disabled_for_the_whole_gpu(world: World) -> None:
    part, whole = world.device(f"{FIRST}-mig-1g-10gb-6"), world.device(FIRST)
    world.setup.set_up("u1", [ask(part)], MigConfig(), None, a_minute())
    assert world.mode()
    with pytest.raises(RetryableError, match="claim u1 holds it"):
        world.setup.set_up("u2", [ask(whole)], MigConfig(), None, a_minute())
    world.setup.tear_down("u1", [part.name], None, a_minute())
    assert world.setup.set_up("u2", [ask(whole)], MigConfig(), None, a_minute()).edits == {}
    assert not world.mode()


def test_a_lingering_process_is_waited_for_and_then_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    device = world.device(f"{FIRST}-mig-1g-10gb-6")
    world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    monkeypatch.setattr(gpus, "RETRY_TIMEOUT_S", 0.6)
    inject.fail(world.root, "nvmlComputeInstanceDestroy", IN_USE, machine=MACHINE)
    with pytest.raises(RetryableError, match="a process still uses it") as raised:
        world.setup.tear_down("u1", [device.name], None, a_minute())
    assert raised.value.hint is not None
    assert world.exist() == [(19, 6, 1)]
    monkeypatch.setattr(gpus, "RETRY_TIMEOUT_S", 60.0)
    threading.Timer(0.3, lambda: inject.clear(world.root)).start()
    world.setup.tear_down("u1", [device.name], None, a_minute())
    assert world.exist() == []


def test_a_gpu_instance_that_outlives_its_compute_instance_is_finished_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = world.device(f"{FIRST}-mig-1g-10gb-6")
    world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    monkeypatch.setattr(gpus, "RETRY_TIMEOUT_S", 0.0)
    inject.fail(world.root, "nvmlGpuInstanceDestroy", IN_USE, machine=MACHINE)
    with pytest.raises(RetryableError, match="GPU instance cannot be destroyed"):
        world.setup.tear_down("u1", [device.name], None, a_minute())
    assert world.exist() == [(19, 6, 0)]
    inject.clear(world.root)
    # The next operation on the GPU finishes it, also that of a restarted agent.
    world.again().set_up("u2", [ask(world.device(f"{FIRST}-mig-3g-40gb-4"))], MigConfig(), None, a_minute())
    assert world.exist() == [(9, 4, 1)]


def test_a_caller_that_no_longer_waits_has_nothing_made(world: World) -> None:
    device = world.device(f"{FIRST}-mig-1g-10gb-6")
    with pytest.raises(RetryableError, match="its caller no longer waits for it"):
        world.setup.set_up("u1", [ask(device)], MigConfig(), None, Deadline.of(0))
    assert world.exist() == [] and not world.mode()


def test_a_partition_in_use_is_tried_again_no_longer_than_the_caller_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time passes only in the pauses between two tries: the duration of a call depends on the load of the machine."""
    passed_s = [0.0]

    def pause(seconds: float) -> None:
        passed_s[0] += seconds

    device = world.device(f"{FIRST}-mig-1g-10gb-6")
    world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    monkeypatch.setattr(gpus, "RETRY_TIMEOUT_S", 3600.0)
    inject.fail(world.root, "nvmlComputeInstanceDestroy", IN_USE, machine=MACHINE)
    with pytest.raises(RetryableError, match="a process still uses it"):
        monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: passed_s[0]))
        monkeypatch.setattr(gpus, "time", SimpleNamespace(sleep=pause))
        world.setup.tear_down("u1", [device.name], None, Deadline.of(1))
    assert 0.5 <= passed_s[0] <= 1


def test_missing_room_is_retried_and_then_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    device = world.device(f"{FIRST}-mig-1g-10gb-6")
    monkeypatch.setattr(gpus, "RETRY_TIMEOUT_S", 0.6)
    inject.fail(world.root, "nvmlDeviceCreateGpuInstanceWithPlacement", NO_ROOM, machine=MACHINE)
    with pytest.raises(RetryableError, match="the GPU has no room"):
        world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    world.setup.roll_back("u1", [device.name], MigConfig(), a_minute())
    assert world.notes() == []
    monkeypatch.setattr(gpus, "RETRY_TIMEOUT_S", 60.0)
    threading.Timer(0.3, lambda: inject.clear(world.root)).start()
    world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    assert world.exist() == [(19, 6, 1)]


def test_a_hung_call_about_one_gpu_never_delays_another_and_leaks_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = world.device(f"{FIRST}-mig-1g-10gb-6"), world.device(f"{SECOND}-mig-1g-10gb-6")
    # Longer than the test may take: the call comes back when the test lets it.
    monkeypatch.setattr(drivers, "SLOW_CALL_TIMEOUT_S", 10 * DEADLINE_S)
    inject.hang(world.root, "nvmlDeviceCreateGpuInstanceWithPlacement", "0", MACHINE)
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(world.setup.set_up, "u1", [ask(slow)], MigConfig(), None, a_minute())
        try:
            eventually(world.notes, "the instance is noted right before it is made")
            world.setup.set_up("u2", [ask(quick)], MigConfig(), None, a_minute())
            assert not hanging.done(), "the other GPU was not delayed by the hung one"
            world.setup.tear_down("u2", [quick.name], None, a_minute())
            assert world.exist(1) == []
        finally:
            inject.clear(world.root)
        hanging.result(DEADLINE_S)
    world.setup.tear_down("u1", [slow.name], None, a_minute())

    # And a call that ends after its caller stopped waiting.
    monkeypatch.setattr(drivers, "SLOW_CALL_TIMEOUT_S", 0.5)
    inject.hang(world.root, "nvmlDeviceCreateGpuInstanceWithPlacement", "0", MACHINE)
    with pytest.raises(RetryableError):
        world.setup.set_up("u1", [ask(slow)], MigConfig(), None, a_minute())
    monkeypatch.setattr(drivers, "SLOW_CALL_TIMEOUT_S", DEADLINE_S)
    with pytest.raises(RetryableError):
        world.setup.roll_back("u1", [slow.name], MigConfig(), a_minute())
    inject.clear(world.root)

    def rolled_back() -> bool:  # the call ends, and creates an instance after its caller stopped waiting
        try:
            world.setup.roll_back("u1", [slow.name], MigConfig(), a_minute())
        except RetryableError:
            return False
        return True

    eventually(rolled_back)
    assert world.exist() == []
    assert world.notes() == []


def test_two_claims_that_share_a_partition_keep_it_until_both_are_done(world: World) -> None:
    device = world.device(f"{FIRST}-mig-1g-10gb-6")
    for uid in ("u1", "u2"):
        world.setup.set_up(
            uid, [SetupDevice(ClaimDevice("n/gpu", device.name, ("gpu",), "s"), device)], MigConfig(), None, a_minute()
        )
    world.setup.tear_down("u1", [f"{device.name}/s"], None, a_minute())
    assert world.exist() == [(19, 6, 1)]
    world.setup.tear_down("u2", [f"{device.name}/s"], None, a_minute())
    assert world.exist() == []


def test_claims_that_share_a_partition_cannot_tear_each_other_s_compute_instance_away(world: World) -> None:
    device = world.device(f"{FIRST}-mig-3g-40gb-4")
    shared_with = SetupDevice(ClaimDevice("n/gpu", device.name, ("gpu",), "s"), device)
    world.setup.set_up("u1", [shared_with], MigConfig(), None, a_minute())
    with pytest.raises(RetryableError, match="claim u1 shares .* with 3, not 1"):
        world.setup.set_up("u2", [shared_with], MigConfig(compute_slices=1), None, a_minute())
    world.setup.roll_back("u2", [shared_with.key], MigConfig(compute_slices=1), a_minute())
    assert world.exist() == [(9, 4, 1)]


def test_fewer_compute_slices_than_the_profile_has(world: World) -> None:
    device = world.device(f"{FIRST}-mig-3g-40gb-4")
    world.setup.check(device, MigConfig(compute_slices=2))
    outcome = world.setup.set_up("u1", [ask(device)], MigConfig(compute_slices=2), None, a_minute())
    driver = drivers.MigDriver(world.nvml, world.host, "0000:01:00.0", {})
    assert [compute.slices for compute in driver.compute_instances(driver.instances()[0])] == [2]
    assert outcome.record[device.name]["ci"] == 0
    with pytest.raises(PermanentError, match="computeSlices: 4 exceed the 3"):
        world.setup.check(device, MigConfig(compute_slices=4))


def test_instances_without_a_ledger_entry_are_destroyed_at_start(world: World) -> None:
    for uid, start in (("u1", 6), ("u2", 5)):
        world.setup.set_up(uid, [ask(world.device(f"{FIRST}-mig-1g-10gb-{start}"))], MigConfig(), None, a_minute())
    world.again().prune({"u2"}.__contains__)
    assert world.exist() == [(19, 5, 1)]


def test_a_note_that_cannot_be_understood_destroys_nothing(world: World) -> None:
    device = world.device(f"{FIRST}-mig-1g-10gb-6")
    world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    (name,) = world.notes()
    (world.root.parent / "state/mig" / name).write_text("{")
    with pytest.raises(RetryableError, match="is not a record of MIG instances"):
        world.again().tear_down("u1", [device.name], None, a_minute())
    assert world.exist() == [(19, 6, 1)]
    assert any("is not a record of MIG instances" in problem.message for problem in world.inventory().problems)


def test_a_damaged_note_of_one_gpu_holds_up_no_claim_of_another(world: World) -> None:
    first, second = (world.device(f"{name}-mig-1g-10gb-6") for name in (FIRST, SECOND))
    for uid, device in (("u1", first), ("u2", second)):
        world.setup.set_up(uid, [ask(device)], MigConfig(), None, a_minute())
    (world.root.parent / "state/mig" / world.notes()[0]).write_text("{")
    world.again().tear_down("u2", [second.name], None, a_minute())
    assert (world.exist(0), world.exist(1)) == ([(19, 6, 1)], [])


def test_at_start_a_gpu_that_fails_keeps_no_orphans_on_the_others(world: World) -> None:
    for uid, name in (("u1", FIRST), ("u2", SECOND)):
        world.setup.set_up(uid, [ask(world.device(f"{name}-mig-1g-10gb-6"))], MigConfig(), None, a_minute())
    (world.root.parent / "state/mig" / world.notes()[0]).write_text("{")
    with pytest.raises(RetryableError, match="is not a record of MIG instances"):
        world.again().prune(lambda uid: False)
    assert world.exist(1) == []


def test_a_claim_on_two_gpus_releases_the_gpus_that_work(world: World) -> None:
    devices = [world.device(f"{name}-mig-1g-10gb-6") for name in (FIRST, SECOND)]
    world.setup.set_up("u1", [ask(device) for device in devices], MigConfig(), None, a_minute())
    (world.root.parent / "state/mig" / world.notes()[0]).write_text("{")
    with pytest.raises(RetryableError, match="is not a record of MIG instances"):
        world.again().tear_down("u1", [device.name for device in devices], None, a_minute())
    assert world.exist(1) == []


def test_an_instance_that_appears_during_the_wait_is_foreign(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    device = world.device(f"{FIRST}-mig-1g-10gb-6")
    monkeypatch.setattr(gpus, "RETRY_TIMEOUT_S", 0.1)
    make = drivers.MigDriver.make

    def overtaken(driver: drivers.MigDriver, profile: int, placement: Placement) -> drivers.GpuInstance:
        if world.exist() == []:
            make(driver, profile, placement)  # an operator is quicker, with the very instance that the claim wants
        return make(driver, profile, placement)

    monkeypatch.setattr(drivers.MigDriver, "make", overtaken)
    with pytest.raises(RetryableError, match="the GPU has no room"):
        world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    world.setup.roll_back("u1", [device.name], MigConfig(), a_minute())
    assert world.exist() == [(19, 6, 0)]
    assert world.notes() == []


def test_a_gpu_that_is_gone_holds_no_claim_back(world: World) -> None:
    device = world.device(f"{FIRST}-mig-1g-10gb-6")
    world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    inject.unplug(world.root, "0000:01:00.0", MACHINE)
    world.setup.tear_down("u1", [device.name], None, a_minute())
    assert world.notes() == []


class Killed(BaseException):
    """The agent ends here."""


STEPS = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
    "write",
    "remove",
)


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, bool], None]:
    """Have the agent end before or after the n-th time that it takes a step."""

    def kill(step: str, nth: int, after: bool) -> None:
        left = nth

        def passes(original: Callable[..., Any], name: str) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                mine = name == step or (name == "call" and step in arguments)
                if mine:
                    left -= 1
                if mine and left == 0 and not after:
                    raise Killed
                result = original(*arguments, **options)
                if mine and left == 0:
                    raise Killed
                return result

            return call

        monkeypatch.setattr(drivers.MigDriver, "call", passes(drivers.MigDriver.call, "call"))
        for name in ("write", "remove"):
            monkeypatch.setattr(atomic_file, name, passes(getattr(atomic_file, name), name))

    return kill


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_an_agent_killed_in_any_step_leaks_nothing(
    world: World,
    kill: Callable[[str, int, bool], None],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    after: bool,
) -> None:
    """Make and destroy, and be killed at that step: rolled back, or torn down again, by the agent that comes after."""
    device = world.device(f"{FIRST}-mig-2g-20gb-4")
    kill(step, 1, after)
    made = False
    with pytest.raises(Killed):
        world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
        made = True
        world.setup.tear_down("u1", [device.name], None, a_minute())
    monkeypatch.undo()
    if made:
        world.again().tear_down("u1", [device.name], None, a_minute())
    else:
        world.again().roll_back("u1", [device.name], MigConfig(), a_minute())
    assert world.exist() == []
    assert world.notes() == []
    # And the place can be had again.
    world.setup.set_up("u2", [ask(device)], MigConfig(), None, a_minute())
    assert world.exist() == [(14, 4, 1)]


def test_an_agent_killed_during_a_set_up_can_continue_it(world: World, kill: Callable[[str, int, bool], None]) -> None:
    """A completed claim that is torn down half is set up again at start, until the kubelet asks again."""
    device = world.device(f"{FIRST}-mig-2g-20gb-4")
    first = world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    kill("nvmlGpuInstanceDestroy", 1, False)
    with pytest.raises(Killed):
        world.setup.tear_down("u1", [device.name], None, a_minute())
    world.again().set_up("u1", [ask(device)], MigConfig(), first.record, a_minute())
    assert world.exist() == [(14, 4, 1)]


@pytest.mark.parametrize(
    ("access", "divided"),
    [
        pytest.param(Access(admin=False, config=False), False, id="nothing permitted"),
        pytest.param(Access(admin=False, config=False), True, id="nothing permitted, MIG mode on"),
        pytest.param(Access(admin=False), False, id="instances, but not the mode"),
    ],
)
def test_a_partition_without_permission_is_refused_with_the_line_to_add(
    world: World, access: Access, divided: bool
) -> None:
    name = f"{FIRST}-mig-3g-40gb-4"
    device = world.device(name)
    if divided:
        world.create_outside(19, 0, 1)
    inject.set_access(world.root, access, MACHINE)
    with pytest.raises(PermanentError, match="Insufficient Permissions") as refused:
        world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    assert refused.value.where == "GPU 0000:01:00.0"
    assert refused.value.hint is not None and "mig: partition" in refused.value.hint
    assert "systemd/mig.conf" in refused.value.hint
    assert world.notes() == [], "nothing is recorded for an instance that was not created"


def test_a_whole_gpu_without_permission_to_switch_mig_off_is_refused_too(world: World) -> None:
    whole = world.device(FIRST)
    world.setup.set_up("u1", [ask(world.device(f"{FIRST}-mig-1g-10gb-6"))], MigConfig(), None, a_minute())
    world.setup.tear_down("u1", [f"{FIRST}-mig-1g-10gb-6"], None, a_minute())
    inject.set_access(world.root, Access(admin=False, config=False), MACHINE)
    with pytest.raises(PermanentError, match="Insufficient Permissions"):
        world.setup.set_up("u2", [ask(whole)], MigConfig(), None, a_minute())


def test_an_instance_stays_recorded_until_the_agent_may_destroy_it(world: World) -> None:
    name = f"{FIRST}-mig-3g-40gb-4"
    world.setup.set_up("u1", [ask(world.device(name))], MigConfig(), None, a_minute())
    inject.set_access(world.root, Access(admin=False, config=False), MACHINE)
    with pytest.raises(RetryableError, match="Insufficient Permissions") as refused:
        world.setup.tear_down("u1", [name], None, a_minute())
    assert refused.value.hint is not None and "mig: partition" in refused.value.hint
    inject.set_access(world.root, Access(), MACHINE)
    world.setup.tear_down("u1", [name], None, a_minute())
    assert world.exist() == [] and world.notes() == []


@pytest.mark.parametrize("access", [Access(instances=False), Access(config=False, instances=False)])
def test_a_partition_is_made_where_the_runtime_covers_the_driver_s_procfs(world: World, access: Access) -> None:
    name = f"{FIRST}-mig-3g-40gb-4"
    device = world.device(name)
    inject.set_access(world.root, access, MACHINE)
    outcome = world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    nodes = [node.path for node in outcome.edits[name].device_nodes]
    nodes += [mount.container_path for mount in outcome.edits[name].mounts]
    assert len(nodes) == 2 and all((world.host.dev / Path(path).relative_to("/dev")).exists() for path in nodes)
    world.setup.tear_down("u1", [name], None, a_minute())
    assert world.exist() == []


@pytest.mark.parametrize("is_on", [False, True], ids=["MIG off", "MIG on"])
@pytest.mark.parametrize(("access", "name"), DISTINCT.items(), ids=DISTINCT.values())
def test_a_partition_is_made_and_removed_by_every_runtime_that_permits_it(
    world: World, access: Access, name: str, is_on: bool
) -> None:
    """CAP_SYS_ADMIN is enough; the capability `mig/config` is for instances only, and not for the mode."""
    partition = f"{FIRST}-mig-3g-40gb-4"
    device = world.device(partition)
    if is_on:
        world.create_outside(19, 0, 1)
    before = world.exist()
    inject.set_access(world.root, access, MACHINE)
    if not (access.admin or (access.config and is_on)):
        with pytest.raises(PermanentError, match="Insufficient Permissions") as refused:
            world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
        assert refused.value.hint is not None and "mig: partition" in refused.value.hint
        assert world.exist() == before and world.notes() == [] and world.mode() == is_on
        return
    outcome = world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    assert (9, 4, 1) in world.exist()
    edits = outcome.edits[partition]
    nodes = [node.path for node in edits.device_nodes] + [mount.container_path for mount in edits.mounts]
    assert len(nodes) == 2 and all((world.host.dev / Path(path).relative_to("/dev")).exists() for path in nodes)
    world.setup.tear_down("u1", [partition], outcome.record, a_minute())
    assert world.exist() == before and world.notes() == []


@pytest.mark.parametrize("function", ["nvmlDeviceSetMigMode", "nvmlDeviceCreateGpuInstanceWithPlacement"])
def test_unsupported_calls_are_not_retried(world: World, function: str) -> None:
    """As in the guest of a vGPU: NOT_SUPPORTED with MIG mode on is not a matter of time."""
    name = f"{FIRST}-mig-3g-40gb-4"
    device = world.device(name)
    inject.fail(world.root, function, 3, machine=MACHINE)
    with pytest.raises(PermanentError, match="vGPU") as refused:
        world.setup.set_up("u1", [ask(device)], MigConfig(), None, a_minute())
    assert refused.value.where == "GPU 0000:01:00.0"
    assert world.notes() == []
