"""Values of claims: whose they are, what survives a restart, and what ends with the claim."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

import dra_simulate
from dra_agent.inventory.model import Device, Inventory
from dra_agent.telemetry import sampler
from dra_agent.telemetry.claims import exclusive_holders
from dra_agent.telemetry.control import current_values
from dra_simulate import inject
from telemetry.rig import Rig, claim, held

GPU = "gpu-0000-00-04-0"
NIC = "nic-0000-00-05-0"
NOT_SUPPORTED = 3


def load(root: Path, *, percent: int = 0, joules: int = 0, **values: int) -> None:
    inject.load(root, "0", None, utilization=(percent, percent), energy_millijoules=joules * 1000, **values)


def test_a_claim_has_the_values_of_its_gpu(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU))]
    load(root, percent=40, power_milliwatts=55_000, sm_clock_mhz=1500, temperature=61, clock_event_reasons=0x4)
    rig.sample()
    series = rig.series()
    of_gpu = {
        name.partition("{")[0].removeprefix("dra_agent_claim_"): value
        for name, value in series.items()
        if name.startswith("dra_agent_claim_")
    }
    assert of_gpu == {
        "gpu_utilization_ratio": pytest.approx(0.4),
        "memory_utilization_ratio": pytest.approx(0.4),
        "memory_used_bytes": 0,
        "memory_limit_bytes": pytest.approx(16 << 30, rel=0.1),
        "power_watts": 55,
        "power_limit_watts": 70,
        "temperature_celsius": 61,
        "sm_clock_hertz": 1.5e9,
        "memory_clock_hertz": 1.593e9,
        "energy_joules_total": 0,
        "ecc_corrected_errors_total": 0,
        "ecc_uncorrected_errors_total": 0,
        "pcie_receive_bytes_total": 0,
        "pcie_transmit_bytes_total": 0,
        "idle_seconds_total": 0,
    }
    labels = f'{{device="{GPU}",family="gpu",pool="node-1/gpu",product="Tesla T4"'
    assert series[f"dra_agent_device_gpu_utilization_ratio{labels}}}"] == pytest.approx(0.4)
    assert series[f'dra_agent_device_throttled{labels},reason="power_cap"}}'] == 1
    assert series[f'dra_agent_device_throttled{labels},reason="thermal"}}'] == 0


def test_energy_counts_from_the_first_sample_of_the_claim(rig: Rig, root: Path) -> None:
    load(root, joules=5000)
    rig.sample()
    rig.entries = [claim("train", held(GPU))]
    rig.sample()
    assert rig.of_claim("energy_joules_total", "train", GPU) == 0
    load(root, joules=5600)
    rig.sample()
    assert rig.of_claim("energy_joules_total", "train", GPU) == 600


def test_idle_time_is_counted_between_samples_that_are_close(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU))]
    load(root, percent=0)
    rig.sample()
    rig.sample()
    rig.sample()
    load(root, percent=3)
    rig.sample()
    assert rig.of_claim("idle_seconds_total", "train", GPU) == 20
    load(root, percent=0)
    rig.sample(after_s=500)
    assert rig.of_claim("idle_seconds_total", "train", GPU) == 20


def test_time_between_a_sample_with_work_and_one_without_is_not_idle(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU))]
    for percent, idle_s in ((50, 0), (0, 0), (50, 0), (0, 0), (0, 10), (50, 10)):
        load(root, percent=percent)
        rig.sample()
        assert rig.of_claim("idle_seconds_total", "train", GPU) == idle_s


def test_a_sample_without_utilization_is_not_idle(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU))]
    load(root)
    rig.sample()
    inject.fail(root, "nvmlDeviceGetUtilizationRates", NOT_SUPPORTED)
    rig.sample()
    inject.clear(root)
    load(root)
    rig.sample()
    assert rig.of_claim("idle_seconds_total", "train", GPU) == 0
    rig.sample()
    assert rig.of_claim("idle_seconds_total", "train", GPU) == 10


def test_reasons_of_throttling_are_not_those_of_the_claim_before(rig: Rig, root: Path) -> None:
    """Some drivers report the reasons of all the time since the sample before."""

    def reasons() -> tuple[str, ...] | None:
        shown = current_values("node-1", 10.0, 0.0, rig.sampler.snapshot(), rig.inventory, rig.entries)
        (of_claim,) = shown.claims
        return of_claim.values.throttle_reasons

    def series(name: str) -> dict[str, float | None]:
        return {
            reason: rig.series().get(
                f'dra_agent_claim_throttled{{claim="{name}",device="{GPU}",namespace="team-a",reason="{reason}"}}'
            )
            for reason in ("power_cap", "thermal")
        }

    load(root, power_milliwatts=69_000, clock_event_reasons=0x4)
    rig.entries = [claim("first", held(GPU))]
    rig.sample()
    rig.sample()
    assert reasons() == ("power_cap",)
    assert series("first") == {"power_cap": 1, "thermal": 0}
    rig.entries = [claim("second", held(GPU))]
    rig.sample()
    assert reasons() is None
    assert series("first") == series("second") == {"power_cap": None, "thermal": None}
    rig.sample()
    assert reasons() == ("power_cap",)
    assert series("second") == {"power_cap": 1, "thermal": 0}


@pytest.mark.parametrize(("age_s", "expected"), [(0.2, None), (-3600.0, None), (1.5, pytest.approx(0.8))])
def test_utilization_of_a_time_before_the_claim_is_not_its_own(
    rig: Rig, root: Path, monkeypatch: pytest.MonkeyPatch, age_s: float, expected: float | None
) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(sampler, "wall_now", lambda: now)
    load(root, percent=80)
    rig.sample()
    entry = claim("next", held(GPU))
    rig.entries = [msgspec.structs.replace(entry, started_at=now.timestamp() - age_s)]
    rig.sample()
    for metric in ("gpu_utilization_ratio", "memory_utilization_ratio"):
        assert rig.of_claim(metric, "next", GPU) == expected
    assert rig.of_claim("power_watts", "next", GPU) is not None
    rig.sample()
    assert rig.of_claim("gpu_utilization_ratio", "next", GPU) == pytest.approx(0.8)


def test_counters_survive_a_restart_of_the_agent(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU))]
    load(root, joules=100)
    rig.sample()
    load(root, joules=300)
    rig.sample()
    rig.restart()
    load(root, joules=450)
    rig.sample(after_s=60)
    assert rig.of_claim("energy_joules_total", "train", GPU) == 350
    assert rig.of_claim("idle_seconds_total", "train", GPU) == 10


def test_counters_continue_after_a_reboot_without_what_the_driver_counted_before(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU))]
    load(root, joules=100)
    rig.sample()
    load(root, joules=300)
    rig.sample()
    rig.boot_id = "boot-2"
    rig.restart()
    rig.now_s = 50.0
    load(root, joules=900)
    rig.sample()
    load(root, joules=950)
    rig.sample()
    assert rig.of_claim("energy_joules_total", "train", GPU) == 250


def test_traffic_of_a_gpu_counts_for_its_claim(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU))]
    inject.load(root, "0", None, pcie_bytes=(1_000, 2_000))
    rig.sample()
    inject.load(root, "0", None, pcie_bytes=(1_500, 5_000))
    rig.sample()
    assert rig.of_claim("pcie_transmit_bytes_total", "train", GPU) == 500
    assert rig.of_claim("pcie_receive_bytes_total", "train", GPU) == 3_000
    assert rig.of_claim("nvlink_transmit_bytes_total", "train", GPU) is None, "this GPU has no NVLink"


def test_xids_count_while_the_claim_holds_the_gpu(rig: Rig) -> None:
    rig.xids = {GPU: 4}
    rig.sample()
    rig.entries = [claim("train", held(GPU))]
    rig.sample()
    assert rig.of_claim("xid_errors_total", "train", GPU) == 0
    rig.xids = {GPU: 6}
    rig.sample()
    assert rig.of_claim("xid_errors_total", "train", GPU) == 2
    rig.xids = {}
    rig.sample()
    assert rig.of_claim("xid_errors_total", "train", GPU) == 2, (
        "of a time in which they cannot be read, nothing is known"
    )


def test_xids_count_on_after_a_restart_of_the_agent(rig: Rig) -> None:
    rig.entries = [claim("train", held(GPU))]
    rig.xids = {GPU: 1}
    rig.sample()
    rig.xids = {GPU: 3}
    rig.sample()
    rig.xids = {GPU: 0}
    rig.restart()
    rig.sample()
    rig.xids = {GPU: 5}
    rig.sample()
    assert rig.of_claim("xid_errors_total", "train", GPU) == 7
    assert rig.sampler.snapshot().failures == ()


def test_a_damaged_file_costs_the_counters_only(rig: Rig, root: Path) -> None:
    (rig.state_dir / "telemetry.json").write_text('{"usage": [{"claim"')
    rig.entries = [claim("train", held(GPU))]
    load(root, percent=10)
    rig.sample()
    assert rig.of_claim("gpu_utilization_ratio", "train", GPU) == pytest.approx(0.1)


def test_the_next_claim_of_a_device_starts_at_zero(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU))]
    load(root, joules=100)
    rig.sample()
    load(root, joules=300)
    rig.sample()
    rig.entries = [claim("other", held(GPU))]
    load(root, joules=400)
    rig.sample()
    assert rig.of_claim("energy_joules_total", "other", GPU) == 0
    assert rig.of_claim("energy_joules_total", "train", GPU) is None
    # The claim comes back with the same UID: what the other one used is not its own.
    rig.entries = [claim("train", held(GPU))]
    load(root, joules=500)
    rig.sample()
    assert rig.of_claim("energy_joules_total", "train", GPU) == 0


def test_a_released_claim_has_no_series_before_the_next_sample(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU))]
    rig.sample()
    assert rig.of_claim("power_watts", "train", GPU) is not None
    rig.entries = []
    assert [name for name in rig.series() if name.startswith("dra_agent_claim_")] == []


def test_names_of_claims_are_off_where_they_are_not_wanted(rig: Rig) -> None:
    rig.entries = [claim("secret-project", held(GPU))]
    rig.claim_labels = False
    rig.sample()
    assert not [name for name in rig.series() if "secret-project" in name]
    assert [name for name in rig.series() if name.startswith("dra_agent_device_power_watts")]


def test_traffic_of_a_nic_counts_for_its_claim(rig: Rig, root: Path) -> None:
    inject.traffic(root, "ens5", received_bytes=5_000, sent_bytes=7_000)
    rig.entries = [claim("train", held(NIC))]
    rig.sample()
    inject.traffic(root, "ens5", received_bytes=6_000, sent_bytes=7_500, received_errors=2)
    rig.sample()
    assert rig.of_claim("network_receive_bytes_total", "train", NIC) == 1_000
    assert rig.of_claim("network_transmit_bytes_total", "train", NIC) == 500
    inject.traffic(root, "ens5", received_bytes=6_000, sent_bytes=7_500, received_errors=5)
    rig.sample()
    assert rig.of_claim("network_receive_errors_total", "train", NIC) == 5


def device(name: str, *, shared: bool = False) -> Device:
    return Device(
        name=name,
        family="gpu",
        vendor="nvidia",
        pci_address="0000:01:00.0",
        attributes={},
        allow_multiple_allocations=shared,
    )


def test_a_device_with_several_users_has_no_claim() -> None:
    inventory = Inventory(devices=(device("gpu-a"), device("gpu-b", shared=True), device("gpu-c"), device("gpu-d")))
    entries = [
        claim("share-1", held("gpu-b", share="1")),
        claim("share-2", held("gpu-b", share="2")),
        claim("partition", held("gpu-c", share="gpu-c-mig", shared=True)),
        claim("monitor", held("gpu-a", admin=True), held("gpu-d", admin=True)),
        claim("alone", held("gpu-a")),
        claim("not-yet", held("gpu-d"), state="started"),
    ]
    holders = exclusive_holders(entries, inventory)
    assert {name: holder.name for name, holder in holders.items()} == {"gpu-a": "alone"}


def test_data_of_nvlinks_counts_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    rig = Rig(dra_simulate.build("dgx-h100", tmp_path / "host"), tmp_path / "state")
    try:
        gpu = next(one for one in rig.inventory.devices if one.family == "gpu")
        rig.entries = [claim("train", held(gpu.name))]
        rig.sample()
        inject.load(tmp_path / "host", gpu.pci_address, None, nvlink_kibibytes=(3, 5))
        rig.sample()
        assert rig.of_claim("nvlink_transmit_bytes_total", "train", gpu.name) == 3 * 1024
        assert rig.of_claim("nvlink_receive_bytes_total", "train", gpu.name) == 5 * 1024
    finally:
        rig.close()
