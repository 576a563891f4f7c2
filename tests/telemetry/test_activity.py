"""Averages of GPM: activity of GPUs and MIG devices, compared with the load that they play, and drivers that fail."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dra_simulate
from dra_agent.host import Host
from dra_agent.inventory.nvidia.nvml_client import NvmlClient, acquire
from dra_simulate import inject
from dra_simulate.machine import NvidiaDriver
from dra_simulate.nvml import Access, LoadStep
from eventually import DEADLINE_S, eventually
from inventory.pair import ADDRESS, NAME, ONE_G, PAIR, destroy, handle, make
from telemetry.rig import Rig, claim, held

THREE_G = 9
FUNCTION_NOT_FOUND, LOST, VERSION_MISMATCH, UNKNOWN = 13, 15, 25, 999
STEP_S = 1000.0
TRAINING = (
    LoadStep(at_ms=0, utilization=(90, 40), activity=(70, 50, 30)),
    LoadStep(at_ms=2_000_000, utilization=(0, 0)),
    LoadStep(at_ms=4_000_000, utilization=(80, 20)),
)
"""The last step has no activity: that of its utilization."""
INFERENCE = (LoadStep(at_ms=0, utilization=(10, 5), activity=(8, 4, 2)),)
NAMES = ("sm_activity_ratio", "tensor_activity_ratio", "memory_bandwidth_ratio")
MIG_NAMES = ("gpu_utilization_ratio", *NAMES)
ABSENT = (None, None, None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "host"


@pytest.fixture
def host(root: Path) -> Host:
    """Two H100."""
    return dra_simulate.build_machine(PAIR, root)


@pytest.fixture
def library(host: Host) -> Iterator[NvmlClient]:
    """The library of the host, shared with the rig."""
    library = acquire(host.nvml, 20.0)
    library.start()
    yield library
    library.close()


@pytest.fixture
def new_rig(host: Host, tmp_path: Path, library: NvmlClient) -> Iterator[Callable[[], Rig]]:
    """Make a rig once the GPUs are as the test needs them."""
    made: list[Rig] = []

    def new() -> Rig:
        state = tmp_path / "state"
        state.mkdir()
        made.append(Rig(host, state))
        return made[0]

    yield new
    for rig in made:
        rig.close()


def sample(rig: Rig, root: Path, seconds: float = STEP_S) -> None:
    inject.skip(root, seconds)
    rig.sample()


def of_claim(rig: Rig, name: str, device: str, names: tuple[str, ...] = NAMES) -> tuple[float | None, ...]:
    return tuple(rig.of_claim(metric, name, device) for metric in names)


def of_device(rig: Rig, device: str, names: tuple[str, ...] = NAMES) -> tuple[float | None, ...]:
    found = rig.sampler.snapshot().samples[device]
    return tuple(getattr(found, name) for name in names)


def failures(rig: Rig) -> list[tuple[str, str]]:
    return [(failure.device, failure.message) for failure in rig.sampler.snapshot().failures]


def divided(library: NvmlClient, *places: tuple[int, int]) -> list[int]:
    """Switch MIG on, and make instances of one slice at such places."""
    library.call("nvmlDeviceSetMigMode", handle(library), 1, about=ADDRESS)
    return [make(library, ONE_G, start, size) for start, size in places]


def parts_of(rig: Rig) -> list[str]:
    found = (device for device in rig.inventory.devices if device.pci_address == ADDRESS)
    return [device.name for device in found if device.identity.get("uuid", "").startswith("MIG-")]


def test_a_claim_has_the_activity_that_its_gpu_played(root: Path, new_rig: Callable[[], Rig]) -> None:
    rig = new_rig()
    rig.entries = [claim("train", held(NAME))]
    inject.play(root, ADDRESS, TRAINING, PAIR)
    sample(rig, root, 500.0)
    assert of_device(rig, NAME) == ABSENT, "nothing is known of the time before"
    sample(rig, root)
    assert of_claim(rig, "train", NAME) == pytest.approx((0.7, 0.5, 0.3))
    sample(rig, root)
    # The step changed in the middle: from second 1500 to 2500.
    assert of_claim(rig, "train", NAME) == pytest.approx((0.35, 0.25, 0.15), abs=0.02)
    assert rig.of_claim("gpu_utilization_ratio", "train", NAME) == 0, "that of the driver's last sampling period"
    sample(rig, root)
    assert of_claim(rig, "train", NAME) == (0, 0, 0)
    sample(rig, root, 2 * STEP_S)
    assert of_claim(rig, "train", NAME) == pytest.approx((0.6, 0, 0.15), abs=0.02)
    assert failures(rig) == []


def test_mig_devices_have_the_activity_that_each_played(
    root: Path, library: NvmlClient, new_rig: Callable[[], Rig]
) -> None:
    instances = divided(library, (0, 1), (1, 1))
    rig = new_rig()
    parts = parts_of(rig)
    rig.entries = [claim(f"claim-{number}", held(part)) for number, part in enumerate(parts)]
    for instance, steps in zip(instances, (TRAINING, INFERENCE), strict=True):
        inject.play(root, ADDRESS, steps, PAIR, gpu_instance=instance)
    sample(rig, root, 500.0)
    sample(rig, root)
    expected = [(0.9, 0.7, 0.5, 0.3), (0.1, 0.08, 0.04, 0.02)]
    found = [of_claim(rig, f"claim-{number}", part, MIG_NAMES) for number, part in enumerate(parts)]
    assert found == [pytest.approx(one) for one in expected]
    of_claims = {name.partition("{")[0] for name in rig.series() if name.startswith("dra_agent_claim_")}
    assert of_claims == {
        *(f"dra_agent_claim_{name}" for name in MIG_NAMES),
        *(f"dra_agent_claim_{name}" for name in ("memory_used_bytes", "memory_limit_bytes", "idle_seconds_total")),
    }, "the power and the energy of the GPU are of both claims together"
    for _ in range(3):
        sample(rig, root)
    assert rig.of_claim("idle_seconds_total", "claim-0", parts[0]) == 10, "from second 2500 to 3500"
    assert rig.of_claim("idle_seconds_total", "claim-1", parts[1]) == 0
    assert failures(rig) == []


def test_an_average_is_of_a_claim_that_held_the_device_for_all_of_it(root: Path, new_rig: Callable[[], Rig]) -> None:
    rig = new_rig()
    rig.entries = [claim("first", held(NAME))]
    inject.play(root, ADDRESS, INFERENCE, PAIR)
    sample(rig, root)
    sample(rig, root)
    assert of_claim(rig, "first", NAME) == pytest.approx((0.08, 0.04, 0.02))
    rig.entries = [claim("second", held(NAME))]
    sample(rig, root)
    assert of_claim(rig, "second", NAME) == ABSENT
    assert of_device(rig, NAME) == pytest.approx((0.08, 0.04, 0.02))
    assert rig.of_claim("gpu_utilization_ratio", "second", NAME) == pytest.approx(0.1)
    sample(rig, root)
    assert of_claim(rig, "second", NAME) == pytest.approx((0.08, 0.04, 0.02))


def test_the_first_average_of_a_mig_device_is_not_of_its_claim(
    root: Path, library: NvmlClient, new_rig: Callable[[], Rig]
) -> None:
    (instance,) = divided(library, (0, 1))
    rig = new_rig()
    (part,) = parts_of(rig)
    inject.play(root, ADDRESS, INFERENCE, PAIR, gpu_instance=instance)
    sample(rig, root)
    rig.entries = [claim("late", held(part))]
    sample(rig, root)
    assert of_device(rig, part, MIG_NAMES) == pytest.approx((0.1, 0.08, 0.04, 0.02))
    assert of_claim(rig, "late", part, MIG_NAMES) == (None, *ABSENT)
    assert rig.of_claim("memory_limit_bytes", "late", part) is not None
    assert rig.of_claim("idle_seconds_total", "late", part) is None
    sample(rig, root)
    assert of_claim(rig, "late", part, MIG_NAMES) == pytest.approx((0.1, 0.08, 0.04, 0.02))


def test_an_average_does_not_reach_beyond_a_sample_that_is_missing(root: Path, new_rig: Callable[[], Rig]) -> None:
    rig = new_rig()
    rig.entries = [claim("train", held(NAME))]
    inject.play(root, ADDRESS, INFERENCE, PAIR)
    sample(rig, root)
    inject.fail(root, "nvmlDeviceGetUtilizationRates", LOST, ADDRESS, PAIR, times=1)
    sample(rig, root)
    assert NAME not in rig.sampler.snapshot().samples
    sample(rig, root)
    assert of_claim(rig, "train", NAME) == ABSENT
    sample(rig, root)
    assert of_claim(rig, "train", NAME) == pytest.approx((0.08, 0.04, 0.02))


def test_compute_instances_of_one_gpu_instance_have_no_activity(
    root: Path, library: NvmlClient, new_rig: Callable[[], Rig]
) -> None:
    divided(library)
    place = library.module.c_nvmlGpuInstancePlacement_t(0, 4)
    made = library.call(
        "nvmlDeviceCreateGpuInstanceWithPlacement", handle(library), THREE_G, ctypes.byref(place), about=ADDRESS
    )
    for _ in range(2):
        library.call("nvmlGpuInstanceCreateComputeInstance", made, 0, about=ADDRESS)
    rig = new_rig()
    parts = parts_of(rig)
    assert len(parts) == 2
    rig.entries = [claim(f"claim-{number}", held(part)) for number, part in enumerate(parts)]
    instance = int(library.call("nvmlGpuInstanceGetInfo", made, about=ADDRESS).id)
    inject.play(root, ADDRESS, INFERENCE, PAIR, gpu_instance=instance)
    for _ in range(2):
        sample(rig, root)
    assert not rig.sampler.snapshot().samples.keys() & set(parts)
    assert not [name for name in rig.series() if name.startswith("dra_agent_claim_")]
    assert failures(rig) == []


def test_an_instance_that_replaces_another_begins_without_its_average(
    root: Path, library: NvmlClient, new_rig: Callable[[], Rig]
) -> None:
    (before,) = divided(library, (0, 1))
    rig = new_rig()
    sample(rig, root)
    destroy(library, before)
    assert make(library, ONE_G, 0, 1) == before, "it has the number of the instance that was destroyed"
    rig.scan()
    (part,) = parts_of(rig)
    rig.entries = [claim("train", held(part))]
    inject.play(root, ADDRESS, INFERENCE, PAIR, gpu_instance=before)
    sample(rig, root)
    assert of_device(rig, part, MIG_NAMES) == (None, *ABSENT)
    sample(rig, root)
    assert of_claim(rig, "train", part, MIG_NAMES) == pytest.approx((0.1, 0.08, 0.04, 0.02))
    assert library.call("release_gpm", about="test") == 2, "of the instance, and of the other GPU"


def test_a_library_that_started_again_begins_without_an_average(
    root: Path, library: NvmlClient, new_rig: Callable[[], Rig]
) -> None:
    rig = new_rig()
    rig.entries = [claim("train", held(NAME))]
    inject.play(root, ADDRESS, INFERENCE, PAIR)
    sample(rig, root)
    sample(rig, root)
    assert of_claim(rig, "train", NAME) == pytest.approx((0.08, 0.04, 0.02))
    library.stop()
    library.start()
    sample(rig, root)
    assert of_device(rig, NAME) == ABSENT
    assert rig.of_claim("power_watts", "train", NAME) is not None
    sample(rig, root)
    assert of_claim(rig, "train", NAME) == pytest.approx((0.08, 0.04, 0.02))
    assert failures(rig) == []


def test_samples_do_not_accumulate_and_are_freed_with_telemetry(
    root: Path, library: NvmlClient, new_rig: Callable[[], Rig]
) -> None:
    divided(library, (0, 1), (1, 1))
    rig = new_rig()
    for _ in range(5):
        sample(rig, root)
    assert library.call("release_gpm", about="test") == 3, "two instances, and the other GPU"
    sample(rig, root)
    rig.restart()
    assert library.call("release_gpm", about="test") == 0


def test_without_permission_the_activity_is_absent_and_named(
    root: Path, library: NvmlClient, new_rig: Callable[[], Rig]
) -> None:
    divided(library, (0, 1))
    rig = new_rig()
    (part,) = parts_of(rig)
    rig.entries = [claim("train", held(part))]
    inject.set_access(root, Access(admin=False), PAIR)
    for _ in range(2):
        sample(rig, root)
    assert of_claim(rig, "train", part, MIG_NAMES) == (None, *ABSENT)
    assert rig.of_claim("memory_used_bytes", "train", part) is not None
    ((device, message),) = failures(rig)
    assert device == part
    assert "activity is not known" in message and "Insufficient Permissions" in message
    assert rig.series()['dra_agent_telemetry_failing_devices{source="nvml"}'] == 1


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("nvmlGpmQueryDeviceSupport", FUNCTION_NOT_FOUND),
        ("nvmlGpmQueryDeviceSupport", VERSION_MISMATCH),
        ("nvmlGpmMetricsGet", VERSION_MISMATCH),
    ],
)
def test_a_driver_without_it_is_not_a_failure(root: Path, new_rig: Callable[[], Rig], function: str, code: int) -> None:
    rig = new_rig()
    rig.entries = [claim("train", held(NAME))]
    inject.play(root, ADDRESS, INFERENCE, PAIR)
    inject.fail(root, function, code, machine=PAIR)
    for _ in range(3):
        sample(rig, root)
    assert of_device(rig, NAME) == ABSENT
    assert rig.of_claim("gpu_utilization_ratio", "train", NAME) == pytest.approx(0.1)
    assert failures(rig) == []


def test_a_driver_before_520_has_no_activity(root: Path, tmp_path: Path) -> None:
    machine = dataclasses.replace(PAIR, nvidia=NvidiaDriver("515.105.01", 11070))
    state = tmp_path / "state"
    state.mkdir()
    rig = Rig(dra_simulate.build_machine(machine, root), state)
    try:
        inject.play(root, ADDRESS, INFERENCE, machine)
        for _ in range(2):
            sample(rig, root)
        assert of_device(rig, NAME) == ABSENT
        assert failures(rig) == []
    finally:
        rig.close()


def test_values_that_cannot_be_true_are_dropped_and_named(root: Path, new_rig: Callable[[], Rig]) -> None:
    rig = new_rig()
    rig.entries = [claim("train", held(NAME))]
    inject.play(root, ADDRESS, INFERENCE, PAIR)
    sample(rig, root)
    # More than all of it, an error of one metric, and no number.
    inject.load(root, ADDRESS, PAIR, gpm={2: (0, 140.0), 5: (UNKNOWN, 50.0), 10: (0, None)})
    sample(rig, root)
    assert of_claim(rig, "train", NAME) == ABSENT
    assert [message for _, message in failures(rig)] == ["sm_activity_ratio is 1.4, outside of 0 to 1"]
    inject.load(root, ADDRESS, PAIR, gpm={2: (0, -1.0)})
    sample(rig, root)
    activity, *others = of_claim(rig, "train", NAME)
    assert activity is None
    assert others == pytest.approx([0.04, 0.02])


def test_samples_without_time_between_them_have_no_average(root: Path, new_rig: Callable[[], Rig]) -> None:
    rig = new_rig()
    # A schedule that has not begun does not advance.
    inject.play(root, ADDRESS, INFERENCE, PAIR)
    inject.skip(root, -10_000.0)
    for _ in range(2):
        rig.sample()
    assert of_device(rig, NAME) == ABSENT
    assert failures(rig) == []


def test_a_sample_that_fails_is_named_and_ends_the_average(root: Path, new_rig: Callable[[], Rig]) -> None:
    rig = new_rig()
    rig.entries = [claim("train", held(NAME))]
    inject.play(root, ADDRESS, INFERENCE, PAIR)
    sample(rig, root)
    inject.fail(root, "nvmlGpmSampleGet", UNKNOWN, ADDRESS, PAIR, times=1)
    sample(rig, root)
    assert of_device(rig, NAME) == ABSENT
    assert [device for device, _ in failures(rig)] == [NAME]
    assert rig.of_claim("power_watts", "train", NAME) is not None
    sample(rig, root)
    assert of_device(rig, NAME) == ABSENT, "the reading before has failed"
    sample(rig, root)
    assert of_claim(rig, "train", NAME) == pytest.approx((0.08, 0.04, 0.02))
    assert failures(rig) == []


def test_a_driver_that_hangs_costs_the_averages_only(
    root: Path, new_rig: Callable[[], Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the call that hangs times out, so the others may take as long as the machine needs.
    monkeypatch.setattr("dra_agent.telemetry.sources.nvidia.CALL_TIMEOUT_S", DEADLINE_S)
    rig = new_rig()
    rig.device_timeout_s = DEADLINE_S
    rig.restart()
    rig.entries = [claim("train", held(NAME))]
    inject.play(root, ADDRESS, INFERENCE, PAIR)
    sample(rig, root)
    inject.hang(root, "nvmlGpmSampleGet", ADDRESS, PAIR)
    call = NvmlClient.call

    def impatient(client: NvmlClient, name: str, *arguments: Any, about: str, timeout: float | None = None) -> Any:
        hangs = name == "read_gpm" and about == f"activity of {NAME}"
        return call(client, name, *arguments, about=about, timeout=0.0 if hangs else timeout)

    with monkeypatch.context() as patched:
        patched.setattr(NvmlClient, "call", impatient)
        for _ in range(2):
            sample(rig, root)
            assert rig.of_claim("power_watts", "train", NAME) is not None
            assert [device for device, _ in failures(rig)] == [NAME]
    inject.clear(root)

    def has_average() -> bool:
        sample(rig, root)
        return of_claim(rig, "train", NAME) == pytest.approx((0.08, 0.04, 0.02))

    eventually(has_average)
