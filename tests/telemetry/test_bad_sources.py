"""Sources that hang, lie, disappear or count backwards: the value is absent and named, and others do not wait."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.running_agent import check_telemetry
from dra_agent.host import Host
from dra_agent.telemetry.accounting import STATE_FILE, Accounting
from dra_agent.telemetry.model import COUNTERS, DeviceSample
from dra_agent.telemetry.plausibility import drop_impossible, increase
from dra_simulate import inject
from dra_simulate.tree import replace_file
from eventually import eventually
from telemetry.rig import INTERVAL_S, Rig, claim, held

GPU = "gpu-0000-00-04-0"
NIC = "nic-0000-00-05-0"
GPU_IS_LOST, NOT_SUPPORTED = 15, 3
PACKETS = (
    *("network_receive_errors", "network_transmit_errors", "network_receive_drops", "network_transmit_drops"),
    *("rdma_receive_errors", "rdma_transmit_discards"),
)


def failing(rig: Rig) -> set[tuple[str, str]]:
    return {(failure.source, failure.device) for failure in rig.sampler.snapshot().failures}


def test_more_than_all_of_a_gpu_is_not_a_value(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU))]
    inject.load(root, "0", utilization=(200, 10), energy_millijoules=0)
    rig.sample()
    assert rig.of_claim("gpu_utilization_ratio", "train", GPU) is None
    assert rig.of_claim("memory_utilization_ratio", "train", GPU) == pytest.approx(0.1)
    assert failing(rig) == {("nvml", GPU)}
    assert rig.series()['dra_agent_telemetry_failing_devices{source="nvml"}'] == 1


def test_sources_have_a_series_before_their_first_failure(rig: Rig, root: Path) -> None:
    def counts() -> dict[str, float]:
        name = "dra_agent_telemetry_failing_devices{"
        return {series.split('"')[1]: value for series, value in rig.series().items() if series.startswith(name)}

    assert counts() == {}, "nothing is sampled yet"
    inject.load(root, "0", utilization=(1, 1), energy_millijoules=0)
    rig.sample()
    sources = ("counters", "nvml", "processes", "sysfs-network")
    assert counts() == dict.fromkeys(sources, 0)
    inject.load(root, "0", utilization=(200, 10), energy_millijoules=0)
    rig.sample()
    assert counts() == {**dict.fromkeys(sources, 0), "nvml": 1}
    rig.now_s += 10 * rig.interval_s
    assert counts() == {**dict.fromkeys(sources, 0), "nvml": 1}, "also while samples are too old"


def test_a_counter_that_goes_back_loses_one_step(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU))]
    for joules in (1000, 1500, 20, 120):
        inject.load(root, "0", utilization=(1, 1), energy_millijoules=joules * 1000)
        rig.sample()
    assert rig.of_claim("energy_joules_total", "train", GPU) == 600


def test_a_counter_in_other_units_is_not_counted(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU))]
    for millijoules in (1_000_000, 1_500_000, 1_500_000_000, 1_500_100_000):
        inject.load(root, "0", utilization=(1, 1), energy_millijoules=millijoules)
        rig.sample()
        if millijoules == 1_500_000_000:
            assert failing(rig) == {("counters", GPU)}
    assert rig.of_claim("energy_joules_total", "train", GPU) == 600


def test_values_that_a_gpu_does_not_have_are_absent_and_no_failure(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU))]
    inject.fail(root, "nvmlDeviceGetTotalEnergyConsumption", NOT_SUPPORTED)
    inject.fail(root, "nvmlDeviceGetUtilizationRates", NOT_SUPPORTED)
    rig.sample()
    assert rig.of_claim("energy_joules_total", "train", GPU) is None
    assert rig.of_claim("idle_seconds_total", "train", GPU) is None
    assert rig.of_claim("power_watts", "train", GPU) is not None
    assert failing(rig) == set()


def test_a_lost_gpu_is_named_by_doctor(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU), held(NIC))]
    inject.fail(root, "nvmlDeviceGetUtilizationRates", GPU_IS_LOST)
    rig.now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    rig.sample(after_s=0)
    assert rig.of_claim("power_watts", "train", GPU) is None
    assert rig.of_claim("network_receive_bytes_total", "train", NIC) is not None
    assert failing(rig) == {("nvml", GPU)}
    findings = list(check_telemetry(CheckContext(host=rig.host, state_dir=rig.state_dir)))
    assert [(finding.where, finding.message.rpartition(": ")[2]) for finding in findings] == [(GPU, "GPU is lost")]
    # What an agent met that has stopped since is history.
    rig.sample(after_s=-10_000)
    context = CheckContext(host=rig.host, state_dir=rig.state_dir)
    assert list(check_telemetry(context)) == []


@pytest.mark.parametrize(("age_s", "is_late"), [(0, False), (3 * INTERVAL_S + 1, False), (1000, True), (-1000, True)])
def test_an_agent_that_has_stopped_sampling_is_named_by_doctor(rig: Rig, age_s: float, is_late: bool) -> None:
    rig.now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    rig.sample(after_s=-age_s)
    context = CheckContext(host=rig.host, state_dir=rig.state_dir, telemetry_interval_s=INTERVAL_S)
    messages = [finding.message for finding in check_telemetry(context)]
    assert messages == ["the agent has no current sample of its telemetry"] * is_late


def test_an_agent_that_has_never_sampled_is_named_by_doctor(tmp_path: Path) -> None:
    context = CheckContext(host=Host(), state_dir=tmp_path)
    assert list(check_telemetry(context)) == []
    context.telemetry_interval_s = INTERVAL_S
    assert len(list(check_telemetry(context))) == 1


def test_a_library_that_hangs_costs_the_values_of_its_gpu(
    rig: Rig, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.entries = [claim("train", held(GPU), held(NIC))]
    rig.sample()
    with monkeypatch.context() as patched:
        patched.setattr("dra_agent.telemetry.sources.nvidia.CALL_TIMEOUT_S", 0.3)
        inject.hang(root, "nvmlDeviceGetClockInfo")
        rig.sample()
    assert rig.of_claim("power_watts", "train", GPU) is None
    assert rig.of_claim("network_receive_bytes_total", "train", NIC) is not None
    assert failing(rig) == {("nvml", GPU)}
    # Health of the GPU does not wait for telemetry.
    assert [device.health for device in rig.scan().devices if device.name == GPU] == ["healthy"]
    inject.clear(root)

    def is_read_again() -> bool:
        rig.sample()
        return rig.of_claim("power_watts", "train", GPU) is not None

    eventually(is_read_again)


def test_a_nic_that_left_the_namespace_has_no_values(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(NIC))]
    link = root / "sys/class/net/ens5"
    aside = link.with_name("moved")
    link.rename(aside)
    try:
        rig.sample()
        assert rig.of_claim("network_receive_bytes_total", "train", NIC) is None
        assert failing(rig) == set()
    finally:
        aside.rename(link)


def test_a_counter_file_that_is_not_a_number_is_named(rig: Rig, root: Path) -> None:
    file = root / "sys/class/net/ens5/statistics/rx_bytes"
    before = file.read_bytes()
    replace_file(file, b"many\n")
    try:
        rig.sample()
        assert failing(rig) == {("sysfs-network", NIC)}
    finally:
        replace_file(file, before)


@pytest.mark.parametrize(
    "content", [b'{"usage": [{"claim": {"uid": "\xff"}}]}', b'{"x":' + b"[" * 100_000, b'{"usage": 1}']
)
def test_a_damaged_file_of_counters_starts_them_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / STATE_FILE).write_bytes(content)
    assert Accounting(tmp_path, "boot").usage() == ()


def test_old_values_are_not_current_ones(rig: Rig) -> None:
    rig.entries = [claim("train", held(GPU))]
    rig.sample()
    rig.now_s += 1000
    assert not [name for name in rig.series() if GPU in name]


@pytest.mark.parametrize(
    ("sample", "kept"),
    [
        (DeviceSample(power_watts=math.nan), DeviceSample()),
        (DeviceSample(power_watts=-1.0), DeviceSample()),
        (DeviceSample(power_watts=250_000.0), DeviceSample()),
        (DeviceSample(temperature_celsius=4000.0), DeviceSample()),
        (DeviceSample(energy_joules=-5.0), DeviceSample()),
        (DeviceSample(memory_used_bytes=9, memory_limit_bytes=8), DeviceSample(memory_limit_bytes=8)),
        (DeviceSample(gpu_utilization_ratio=1.0), DeviceSample(gpu_utilization_ratio=1.0)),
    ],
)
def test_values_out_of_range_are_dropped(sample: DeviceSample, kept: DeviceSample) -> None:
    found, problems = drop_impossible(sample)
    assert found == kept
    assert bool(problems) == (found != sample)


def test_what_a_counter_can_grow_by() -> None:
    assert increase("energy_joules", 100, 800, 1.0) == 700
    assert increase("energy_joules", 100, 99, 1.0) is None
    assert increase("energy_joules", 0, 1e9, 10.0) is None
    assert increase("network_receive_bytes", 0, 1e9, 10.0) == 1e9
    assert increase("ecc_corrected_errors", 0, 1e6, 0.0) == 1e6
    assert increase("network_receive_drops", 0, 1e9, 1.0) == 1e9


@pytest.mark.parametrize("name", [name for name in COUNTERS if not name.endswith("_bytes")])
def test_a_counter_of_a_device_that_has_left_the_bus_adds_nothing(name: str) -> None:
    ones = 0xFFFF_FFFF if name not in PACKETS else 0xFFFF_FFFF_FFFF_FFFF
    assert increase(name, 5, ones, 10.0) is None
