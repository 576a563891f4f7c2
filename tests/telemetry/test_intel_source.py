"""GPUs of Intel: sensors, clocks and throttling in the files of xe and i915, and the power between two samples."""

from __future__ import annotations

from pathlib import Path

import pytest

import dra_simulate
from dra_agent.claim import ClaimRef
from dra_agent.host import Host
from dra_agent.inventory.model import Device, Inventory, device_name
from dra_agent.telemetry.claims import AverageOwners
from dra_agent.telemetry.model import DeviceSample
from dra_agent.telemetry.sources.intel import IntelSource

ADDRESS = "0000:03:00.0"
XE, I915 = "hwmon/hwmon2/", "hwmon/hwmon4/"
STEP_S = 10.0


def gpu(address: str = ADDRESS) -> Device:
    return Device(name=device_name("gpu", address), family="gpu", vendor="intel", pci_address=address, attributes={})


class Site:
    """One GPU, and a clock that is set by tests."""

    def __init__(self, sysfs: Path) -> None:
        self.sysfs = sysfs
        self.now_s = 1000.0
        self.source = IntelSource(Host(sysfs=sysfs), elapsed=lambda: self.now_s)

    def write(self, files: dict[str, object], folder: str = f"bus/pci/devices/{ADDRESS}") -> None:
        for name, value in files.items():
            file = self.sysfs / folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")

    def read(self, after_s: float = STEP_S) -> DeviceSample:
        self.now_s += after_s
        sample = self.source.read(gpu())
        assert sample is not None
        return sample


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def gt(folder: str, *engines: str, mhz: int, **reasons: int) -> dict[str, object]:
    """Return the files of a GT under xe."""
    return {
        f"{folder}/freq0/act_freq": mhz,
        f"{folder}/freq0/throttle/status": int(any(reasons.values())),
        **{f"{folder}/freq0/throttle/reason_{name}": value for name, value in reasons.items()},
        **{f"{folder}/engines/{name}/name": name for name in engines},
    }


def test_a_gpu_under_xe(site: Site) -> None:
    site.write(
        {
            f"{XE}name": "xe",
            f"{XE}energy1_input": 12_000_000,
            f"{XE}energy2_input": 9_000_000,
            f"{XE}power1_max": 200_000_000,
            f"{XE}power2_max": 120_000_000,
            f"{XE}temp2_input": 61_000,
            f"{XE}temp3_input": 70_000,
            **gt("tile0/gt0", "rcs", "ccs", mhz=2400, pl1=0, thermal=0),
        }
    )
    site.write({"dmem.capacity": f"drm/{ADDRESS}/vram0 25669140480\ndrm/0000:04:00.0/vram0 1"}, "fs/cgroup")
    assert site.read() == DeviceSample(
        energy_joules=12.0,
        power_limit_watts=200.0,
        temperature_celsius=61.0,
        sm_clock_hertz=2.4e9,
        throttle_reasons=(),
        memory_limit_bytes=25669140480,
    )


def test_a_gpu_under_i915(site: Site) -> None:
    site.write(
        {
            f"{I915}name": "i915",
            f"{I915}energy1_input": 3_000_000,
            f"{I915}power1_max": 150_000_000,
            f"{I915}temp1_input": 55_000,
            "drm/card1/gt/gt0/rps_act_freq_mhz": 1950,
            "drm/card1/gt/gt0/throttle_reason_status": 1,
            "drm/card1/gt/gt0/throttle_reason_pl2": 1,
            "drm/card1/gt/gt0/throttle_reason_prochot": 1,
            "drm/card1/gt/gt0/throttle_reason_thermal": 0,
            "drm/card1/gt/gt1/rps_act_freq_mhz": 2300,
        }
    )
    assert site.read() == DeviceSample(
        energy_joules=3.0,
        power_limit_watts=150.0,
        temperature_celsius=55.0,
        sm_clock_hertz=1.95e9,
        throttle_reasons=("power_cap", "hardware_slowdown"),
    ), "gt1 only has media engines"


def test_memory_under_a_build_of_intel(site: Site) -> None:
    site.write({"drm/card1/lmem_total_bytes": 16 << 30, "drm/card1/lmem_avail_bytes": 12 << 30})
    assert site.read() == DeviceSample(memory_used_bytes=4 << 30, memory_limit_bytes=16 << 30)
    site.write({"drm/card1/lmem_total_bytes": 0, "drm/card1/lmem_avail_bytes": 0, f"{I915}name": "i915"})
    assert site.read() == DeviceSample(), "an integrated GPU has no local memory"


def test_energy_and_limit_of_the_package_where_the_card_has_none(site: Site) -> None:
    site.write({f"{XE}name": "xe", f"{XE}energy2_input": 9_000_000, f"{XE}power2_max": 120_000_000})
    assert site.read() == DeviceSample(energy_joules=9.0, power_limit_watts=120.0)


def test_a_gpu_without_sensors_has_a_clock(site: Site) -> None:
    site.write(gt("tile0/gt0", "rcs", mhz=300))
    assert site.read() == DeviceSample(sm_clock_hertz=3e8, throttle_reasons=())


def test_a_sleeping_gpu_has_a_clock_of_0(site: Site) -> None:
    site.write({"tile0/gt0/engines/ccs/name": "ccs", "tile0/gt0/freq0/act_freq": 0})
    assert site.read() == DeviceSample(sm_clock_hertz=0.0), "and a driver without files of reasons reports none"


def test_the_gts_that_compute_count(site: Site) -> None:
    site.write(
        {
            **gt("tile0/gt0", "ccs", mhz=1200, pl1=0, thermal=1),
            **gt("tile0/gt1", "vcs", "vecs", mhz=2000, pl1=1),
            **gt("tile1/gt2", "ccs", mhz=1500, pl4=1),
        }
    )
    sample = site.read()
    assert sample.sm_clock_hertz == 1.5e9
    assert sample.throttle_reasons == ("thermal", "hardware_slowdown")


@pytest.mark.parametrize(
    ("file", "reasons"),
    [
        ("pl1", ("power_cap",)),
        ("psys_pl2", ("power_cap",)),
        ("ratl", ("thermal",)),
        ("mem_thermal", ("thermal",)),
        ("vr_tdc", ("hardware_slowdown",)),
        ("iccmax", ("hardware_slowdown",)),
        ("p0_freq", ()),
    ],
)
def test_why_a_gpu_is_slowed_down(site: Site, file: str, reasons: tuple[str, ...]) -> None:
    site.write(gt("tile0/gt0", "ccs", mhz=1200, **{file: 1}))
    assert site.read().throttle_reasons == reasons


def test_a_file_that_is_not_a_number_is_an_error(site: Site) -> None:
    site.write({"tile0/gt0/engines/ccs/name": "ccs", "tile0/gt0/freq0/act_freq": "fast"})
    with pytest.raises(ValueError, match="fast"):
        site.read()


def energy(site: Site, joules: float) -> None:
    site.write({f"{XE}name": "xe", f"{XE}energy1_input": int(joules * 1_000_000)})


def test_power_is_the_energy_since_the_sample_before(site: Site) -> None:
    found = []
    for joules, after_s in ((5000, STEP_S), (6500, STEP_S), (6500, STEP_S), (100, STEP_S), (400, 2 * STEP_S)):
        energy(site, joules)
        found.append(site.read(after_s).average_power_watts)
    assert found == [None, 150.0, 0.0, None, 15.0], "a counter that went back was reset with its driver"


def test_power_is_not_known_once_the_register_may_have_wrapped(site: Site) -> None:
    for joules, after_s, watts in ((0, STEP_S, None), (600, 120, 5.0), (1200, 121, None), (1500, STEP_S, 30.0)):
        energy(site, joules)
        assert site.read(after_s).average_power_watts == watts


def test_power_does_not_begin_before_a_sample_without_energy(site: Site) -> None:
    energy(site, 100)
    site.read()
    site.write({f"{XE}energy1_input": "many"})
    with pytest.raises(ValueError, match="many"):
        site.read()
    energy(site, 200)
    assert site.read().average_power_watts is None


def test_a_claim_has_no_power_of_the_time_before_it(site: Site) -> None:
    energy(site, 100)
    site.read()
    energy(site, 200)
    sample, claim, device = site.read(), ClaimRef("uid", "team", "train"), gpu().name
    owners, inventory = AverageOwners(), Inventory((gpu(),))
    first = owners.withhold({device: claim}, {device: sample}, inventory, {})
    assert first[claim, device].average_power_watts is None
    assert owners.withhold({device: claim}, {device: sample}, inventory, {}) == {}, "the values of the device"


@pytest.mark.parametrize(("profile", "watts"), [("arc-b60", 200.0), ("flex170", 150.0)])
def test_simulated_gpus_have_sensors(tmp_path: Path, profile: str, watts: float) -> None:
    host = dra_simulate.build(profile, tmp_path)
    addresses = sorted(sensors.parts[-3] for sensors in host.sysfs.glob("bus/pci/devices/*/hwmon/hwmon*"))
    assert addresses
    for address in addresses:
        sample = IntelSource(host).read(gpu(address))
        assert sample is not None
        assert (sample.temperature_celsius, sample.energy_joules) == (40.0, 0.0)
        assert (sample.power_limit_watts, sample.throttle_reasons) == (watts, ())
