"""Observations and events of libraries become taints, which are removed some time after the last issue."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from dra_agent.clock import STEADY
from dra_agent.health.issues import SETUP_FAILED
from dra_agent.health.monitor import Monitor
from dra_agent.health.published_health import DeviceHealthStore
from dra_agent.health.settings import HealthSettings, TaintEffect
from dra_agent.health.state_file import HealthStateFile
from dra_agent.health.taints import apply_health
from dra_agent.inventory.model import DeviceEvent, Inventory
from fake_clock import FakeTime
from health.conftest import DRIVER, Clock, gpu, inventory, taints, xid

WELL = inventory(gpu())
SETTINGS = HealthSettings(recovery_seconds=60, event_seconds=300)


def monitor(clock: Clock, settings: HealthSettings = SETTINGS, record: HealthStateFile | None = None) -> Monitor:
    made = Monitor(settings, DRIVER, record, clock)
    made.observe(WELL)
    return made


def times(found: Inventory) -> list[str | None]:
    return [taint.time_added for taint in found.devices[0].taints]


def test_a_lost_gpu_is_tainted_at_once_and_free_a_while_after_it_is_back(clock: Clock) -> None:
    watched = monitor(clock)
    clock.now += 10.7
    lost = watched.observe(inventory(gpu(0, "gpu-lost")))
    assert taints(lost) == [("gpu-lost", "NoSchedule")]
    assert times(lost) == ["2027-01-15T08:00:10Z"]
    assert lost.devices[0].health == "unhealthy" and lost.devices[0].health_reason == "the GPU is lost"
    clock.now += 1000
    assert times(watched.observe(inventory(gpu(0, "gpu-lost")))) == ["2027-01-15T08:00:10Z"], "it never changes"
    clock.now += 59
    assert taints(watched.observe(WELL)) == [("gpu-lost", "NoExecute")]
    assert not watched.due()
    clock.now += 1
    assert watched.due()
    assert watched.observe(WELL) == WELL


@pytest.mark.parametrize("cause", ["host-use", "not-claimable"])
def test_a_state_that_sysfs_shows_ends_at_once_unless_it_recurs(clock: Clock, cause: str) -> None:
    watched = monitor(clock)
    for lasts_s in (0, 60, 120):
        clock.now += 300
        assert taints(watched.observe(inventory(gpu(0, cause))))
        if lasts_s:
            clock.now += lasts_s - 1
            assert taints(watched.observe(WELL))
            clock.now += 1
        assert watched.observe(WELL) == WELL


def test_a_device_with_unchanged_issues_stays_the_same_object(clock: Clock) -> None:
    watched = monitor(clock)
    lost = gpu(0, "gpu-lost")
    first = watched.observe(inventory(lost, gpu(1))).devices[0]
    assert watched.observe(inventory(lost)).devices[0] is first
    assert watched.observe(inventory(gpu(0, "gpu-lost"))).devices[0] is not first, "another description"
    clock.now += 10
    confirmed = watched.observe(inventory(lost)).devices[0]
    assert confirmed is not first and confirmed != first


def test_a_device_that_was_not_observed_again_confirms_and_ends_nothing(clock: Clock) -> None:
    watched = monitor(clock)
    lost, other = gpu(0, "gpu-lost"), gpu(1)
    watched.observe(inventory(lost, other))
    clock.now += 10
    kept = watched.observe(inventory(lost, other), {lost.name})
    assert taints(kept) == [("gpu-lost", "NoSchedule")], "it is the same observation"
    assert taints(watched.observe(inventory(lost, other))) == [("gpu-lost", "NoExecute")]
    clock.now += 1000
    assert taints(watched.observe(inventory(gpu(0), other), {lost.name})) == [("gpu-lost", "NoExecute")]


def test_a_gpu_that_is_lost_in_a_single_scan_evicts_no_pod(clock: Clock) -> None:
    watched = monitor(clock)
    assert taints(watched.observe(inventory(gpu(0, "gpu-lost")))) == [("gpu-lost", "NoSchedule")]
    assert not watched.observation_due()
    clock.now += 4.9
    assert taints(watched.observe(inventory(gpu(0, "gpu-lost")))) == [("gpu-lost", "NoSchedule")], "too soon after it"
    clock.now += 0.1
    assert watched.observation_due(), "the next periodic observation would be late"
    assert taints(watched.observe(WELL)) == [("gpu-lost", "NoSchedule")]
    clock.now += 60
    assert not watched.observation_due()
    assert watched.observe(WELL) == WELL
    # What has been away is to be confirmed again.
    assert taints(watched.observe(inventory(gpu(0, "gpu-lost")))) == [("gpu-lost", "NoSchedule")]


def test_a_lost_gpu_evicts_after_a_second_scan(clock: Clock, tmp_path: Path) -> None:
    watched = monitor(clock, record=HealthStateFile(tmp_path, "boot"))
    began = times(watched.observe(inventory(gpu(0, "gpu-lost"))))
    # A library that does not answer in between neither confirms it nor denies it.
    clock.now += 5
    assert taints(watched.observe(inventory(gpu(health="unmonitored"))))[0] == ("gpu-lost", "NoSchedule")
    lost = watched.observe(inventory(gpu(0, "gpu-lost")))
    assert taints(lost)[0] == ("gpu-lost", "NoExecute") and times(lost)[:1] == began
    assert not watched.observation_due()
    restarted = Monitor(SETTINGS, DRIVER, HealthStateFile(tmp_path, "boot"), clock)
    assert taints(restarted.observe(inventory(gpu(0, "gpu-lost"))))[0] == ("gpu-lost", "NoExecute")


@pytest.mark.parametrize("xid_first", [True, False])
def test_the_drivers_own_report_confirms_a_lost_gpu(clock: Clock, xid_first: bool) -> None:
    watched, lost = monitor(clock), inventory(gpu(0, "gpu-lost"))
    if xid_first:
        watched.record_events([xid(79)], WELL)
    watched.observe(lost)
    if not xid_first:
        watched.record_events([xid(79)], lost)
    found = taints(watched.observe(lost))
    assert sorted(found) == [("gpu-lost", "NoExecute"), ("xid-79", "NoExecute")]


def test_an_xid_counts_for_a_while_after_the_last_one(clock: Clock) -> None:
    watched = monitor(clock)
    inventory_after = watched.record_events([xid(63)], WELL)
    assert taints(inventory_after) == [("xid-63", "NoSchedule")]
    assert "a row of memory" in (inventory_after.devices[0].health_reason or "")
    clock.now += 299
    assert taints(watched.record_events([xid(63)], WELL)) == [("xid-63", "NoSchedule")]
    assert times(watched.record_events([], WELL)) == ["2027-01-15T08:00:00Z"]
    clock.now += 299
    assert taints(watched.observe(WELL)) == [("xid-63", "NoSchedule")]
    clock.now += 1
    assert taints(watched.observe(WELL)) == []
    assert (watched.summary.suppressed, watched.summary.happened) == (1, {"xid-63": 2})


def test_a_fatal_xid_is_never_hidden_by_a_later_one(clock: Clock) -> None:
    watched = monitor(clock)
    watched.record_events([xid(79)], WELL)
    clock.now += 1
    found = watched.record_events([xid(63), xid(13)], WELL)
    assert taints(found) == [("xid-79", "NoExecute"), ("xid-63", "NoSchedule")]
    assert (found.devices[0].health_reason or "").startswith("NVIDIA's driver reported XID 79")


@pytest.mark.parametrize("number", HealthSettings().ignored_xids)
def test_errors_of_applications_are_not_issues_of_the_device(clock: Clock, number: int) -> None:
    assert monitor(clock).record_events([xid(number)], WELL) == WELL
    settings = HealthSettings(ignored_xids=())
    assert taints(monitor(clock, settings).record_events([xid(number)], WELL)) == [(f"xid-{number}", "NoSchedule")]


def test_a_fault_hits_every_partition_of_its_gpu_and_nothing_else(clock: Clock) -> None:
    from msgspec.structs import replace

    parts = inventory(replace(gpu(), name="gpu-0a"), replace(gpu(), name="gpu-0b"), gpu(1))
    found = monitor(clock).record_events([xid(48)], parts)
    assert [len(device.taints) for device in found.devices] == [1, 1, 0]


def test_memory_errors_count_from_the_first_scan(clock: Clock) -> None:
    watched = Monitor(SETTINGS, DRIVER, None, clock)
    assert taints(watched.observe(inventory(gpu(errors=7)))) == [], "the time of these errors is unknown"
    assert taints(watched.observe(inventory(gpu(errors=8)))) == [("ecc", "NoSchedule")]
    clock.now += 300
    assert taints(watched.observe(inventory(gpu(errors=8)))) == []
    assert taints(watched.observe(inventory(gpu(errors=0)))) == [], "the driver was loaded again"
    assert taints(watched.observe(inventory(gpu(errors=1)))) == [("ecc", "NoSchedule")]


def test_a_cause_that_comes_back_while_it_counts_changes_nothing(clock: Clock) -> None:
    watched = monitor(clock)
    flapping = watched.observe(inventory(gpu(0, "link-down")))
    for _ in range(50):
        clock.now += 15
        assert watched.observe(WELL).devices[0].taints == flapping.devices[0].taints
        clock.now += 15
        assert watched.observe(inventory(gpu(0, "link-down"))).devices[0].taints == flapping.devices[0].taints
    assert watched.summary.suppressed == 50 and watched.summary.devices == {"link-down": 1}


def test_a_cause_that_keeps_coming_back_counts_longer_each_time(clock: Clock) -> None:
    watched = monitor(clock)
    lasted = []
    for _ in range(7):
        watched.observe(inventory(gpu(0, "link-down")))
        began = clock.now
        while taints(watched.observe(WELL)):
            clock.now += 15
        lasted.append(clock.now - began)
    assert lasted == [60, 120, 240, 480, 960, 960, 960]


def test_after_a_long_peace_it_is_a_new_one(clock: Clock) -> None:
    watched = monitor(clock)
    for _ in range(2):
        watched.observe(inventory(gpu(0, "link-down")))
        clock.now += 60
        assert taints(watched.observe(WELL)) == []
        clock.now += 100_000
        watched.observe(WELL)


def test_an_unplugged_gpu_takes_its_causes_along_in_time(clock: Clock) -> None:
    watched = monitor(clock)
    watched.observe(inventory(gpu(0, "gpu-lost")))
    watched.observe(inventory(gpu(1)))
    clock.now += 60
    assert taints(watched.observe(WELL)) == []


def test_effects_are_the_operators_to_choose(clock: Clock) -> None:
    quiet = HealthSettings(fatal="NoSchedule", degraded="none", unmonitored="NoSchedule")
    watched = monitor(clock, quiet)
    found = watched.observe(inventory(gpu(0, "gpu-lost", "link-down")))
    assert taints(found) == [("gpu-lost", "NoSchedule")] and "no link" in (found.devices[0].health_reason or "")
    assert taints(monitor(clock, quiet).observe(inventory(gpu(health="unmonitored")))) == [
        ("unmonitored", "NoSchedule")
    ]
    silent = HealthSettings(unmonitored="none")
    unmonitored = monitor(clock, silent).observe(inventory(gpu(health="unmonitored")))
    assert taints(unmonitored) == [] and unmonitored.devices[0].health == "unmonitored"


def test_an_unmonitored_device_is_reported_and_stays_allocatable(clock: Clock) -> None:
    watched = monitor(clock)
    began = watched.observe(inventory(gpu(health="unmonitored")))
    assert taints(began) == [("unmonitored", "None")] and began.devices[0].health == "unmonitored"
    clock.now += 30
    both = watched.observe(inventory(gpu(0, "link-down")))
    assert taints(both) == [("link-down", "NoSchedule"), ("unmonitored", "None")], "the worse one is not hidden"
    assert both.devices[0].taints[1] == began.devices[0].taints[0], "with its time"
    clock.now += 29
    assert taints(watched.observe(WELL)) == [("link-down", "NoSchedule"), ("unmonitored", "None")]
    clock.now += 1
    assert taints(watched.observe(WELL)) == [("link-down", "NoSchedule")], "60 s after it was so last"


def test_a_restarted_agent_keeps_issues_and_their_times(clock: Clock, tmp_path: Path) -> None:
    first = monitor(clock, record=HealthStateFile(tmp_path, "boot"))
    first.observe(inventory(gpu(0, "gpu-lost")))
    before = first.record_events([xid(95)], inventory(gpu(0, "gpu-lost")))
    clock.now += 200
    again = Monitor(SETTINGS, DRIVER, HealthStateFile(tmp_path, "boot"), clock)
    found = again.observe(inventory(gpu(0, "gpu-lost")))
    assert found.devices[0].taints == before.devices[0].taints
    clock.now += 100
    assert taints(again.observe(inventory(gpu(0, "gpu-lost")))) == [("gpu-lost", "NoExecute")], "the XID has passed"
    after_reboot = Monitor(SETTINGS, DRIVER, HealthStateFile(tmp_path, "next boot"), clock)
    assert after_reboot.observe(WELL) == WELL


@pytest.mark.parametrize("step", [-8 * 3600.0, 8 * 3600.0])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_step_of_the_wall_clock_prolongs_nothing_and_ends_nothing_early(
    tmp_path: Path, step: float, restarted: bool
) -> None:
    time = FakeTime()

    def start() -> Monitor:
        clock = time.clock()
        return Monitor(SETTINGS, DRIVER, HealthStateFile(tmp_path, "boot", clock), clock.unix)

    watched = start()
    watched.observe(WELL)
    watched.record_events([xid(63)], WELL)
    time.step_wall(step)
    if restarted:
        watched = start()
    time.pass_(299.0)
    assert taints(watched.observe(WELL)) == [("xid-63", "NoSchedule")]
    time.pass_(1.0)
    assert watched.observe(WELL) == WELL


def test_the_clocks_of_health_are_those_that_do_not_step() -> None:
    for part in (Monitor, DeviceHealthStore):
        assert inspect.signature(part).parameters["clock"].default == STEADY.unix


@pytest.mark.parametrize("effect", ["none", "tell", "NoSchedule", "NoExecute"])
def test_a_failed_set_up_keeps_new_claims_off_until_one_succeeds(clock: Clock, effect: TaintEffect) -> None:
    watched = monitor(clock, HealthSettings(degraded=effect, event_seconds=300))
    failed = DeviceEvent("0000:00:00.0", SETUP_FAILED, "no room", ("gpu-0",))
    expected = "NoExecute" if effect == "NoExecute" else "NoSchedule"
    assert taints(watched.record_events([failed], WELL)) == [(SETUP_FAILED, expected)]
    assert taints(watched.resolve(SETUP_FAILED, ["gpu-1"], WELL)) == [(SETUP_FAILED, expected)]
    assert watched.resolve(SETUP_FAILED, ["gpu-0"], WELL) == WELL
    assert watched.resolve(SETUP_FAILED, ["gpu-0"], WELL) == WELL, "it is over"
    # It was repaired: the next failure is not a recurrence, which would count for longer.
    watched.record_events([failed], WELL)
    clock.now += 300
    assert watched.observe(WELL) == WELL


def test_a_failed_set_up_ends_by_itself_and_counts_longer_each_time(clock: Clock) -> None:
    watched = monitor(clock)
    failed = DeviceEvent("0000:00:00.0", SETUP_FAILED, "no room", ("gpu-0",))
    for seconds in (300, 600, 1200):
        watched.record_events([failed], WELL)
        clock.now += seconds - 1
        assert taints(watched.observe(WELL)) == [(SETUP_FAILED, "NoSchedule")]
        clock.now += 1
        assert watched.observe(WELL) == WELL


def test_an_issue_of_the_first_scan_has_no_start_time(clock: Clock) -> None:
    """The publisher keeps the published time; an agent without its record must not replace it."""
    fresh = Monitor(SETTINGS, DRIVER, None, clock)
    assert times(fresh.observe(inventory(gpu(0, "gpu-lost")))) == [None]


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"boot_id": "boot", "spells": [1]}', b"\xff"])
def test_a_damaged_record_costs_no_device(clock: Clock, tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / "health.json").write_bytes(garbage)
    watched = monitor(clock, record=HealthStateFile(tmp_path, "boot"))
    assert taints(watched.record_events([xid(94)], WELL)) == [("xid-94", "NoSchedule")]
    assert len(HealthStateFile(tmp_path, "boot").read()) == 1 and not list(tmp_path.glob(".*"))


def test_a_record_that_cannot_be_written_is_reported_once(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = monitor(clock, record=HealthStateFile(tmp_path / "missing", "boot"))
    for code in (94, 95, 48):
        assert taints(watched.record_events([xid(code)], WELL))
    assert [record.message for record in caplog.records].count("the issues of devices cannot be saved") == 1


def test_nothing_is_written_while_nothing_happens(clock: Clock, tmp_path: Path) -> None:
    watched = monitor(clock, record=HealthStateFile(tmp_path, "boot"))
    watched.observe(inventory(gpu(0, "gpu-lost")))
    clock.now += 15
    watched.observe(inventory(gpu(0, "gpu-lost")))
    written = (tmp_path / "health.json").stat().st_mtime_ns
    for _ in range(20):
        clock.now += 15
        watched.observe(inventory(gpu(0, "gpu-lost")))
    assert (tmp_path / "health.json").stat().st_mtime_ns == written


def test_commands_rate_the_inventory(clock: Clock) -> None:
    shown = apply_health(inventory(gpu(0, "link-down", "gpu-lost"), gpu(1)), SETTINGS, DRIVER)
    assert taints(shown) == [("gpu-lost", "NoExecute"), ("link-down", "NoSchedule")] and taints(shown, 1) == []
