"""Time slices: set while claims want them, reset at the last one's end, one interval on a GPU, and crashes between."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from deadlines import a_minute
from device_setup.fake_nvidia_smi import Smi
from dra_agent.claim import ClaimDevice
from dra_agent.device_setup.timeslice import GpuConfig, TimeSliceSetup
from dra_agent.device_setup.timeslice import setup as timeslice
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.api import Attribute
from dra_agent.inventory.model import Device
from dra_agent.prepare.setup import DeviceSetup, SetupDevice, UnsuitableError
from eventually import DEADLINE_S, eventually

UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER = "GPU-99999999-2222-3333-4444-555555555555"


def gpu(name: str = "gpu-0", uuid: str = UUID, **more: str | bool) -> Device:
    attributes = {key: Attribute.of(value) for key, value in more.items()}
    return Device(name, "gpu", "nvidia", "0000:1b:00.0", attributes, identity={"uuid": uuid})


def whole(device: Device) -> list[SetupDevice]:
    return [SetupDevice(ClaimDevice("n/gpu", device.name, ("gpu",)), device)]


def share(device: Device, name: str) -> SetupDevice:
    return SetupDevice(ClaimDevice("n/gpu", device.name, ("gpu",), name, consumed_capacity={"memory": "4Gi"}), device)


def want(interval: str) -> GpuConfig:
    return msgspec.convert({"timeSlicing": {"interval": interval}}, GpuConfig)


@pytest.fixture
def smi(tmp_path: Path) -> Smi:
    return Smi(tmp_path / "bin")


@pytest.fixture
def slicing(smi: Smi, tmp_path: Path) -> TimeSliceSetup:
    return TimeSliceSetup(smi.path, tmp_path / "state")


@pytest.mark.parametrize(("interval", "number"), [("Default", "0"), ("Short", "1"), ("Medium", "2"), ("Long", "3")])
def test_it_is_set_and_reset(slicing: TimeSliceSetup, smi: Smi, interval: str, number: str) -> None:
    outcome = slicing.set_up("a", whole(gpu()), want(interval), None, a_minute())
    assert smi.slice(UUID) == number
    assert outcome.edits["gpu-0"].env == (f"DRA_AGENT_DEVICE_GPU_0_TIME_SLICE={interval}",)
    slicing.tear_down("a", ["gpu-0"], outcome.record, a_minute())
    assert smi.slice(UUID) == "0"
    calls = len(smi.calls())
    slicing.tear_down("a", ["gpu-0"], outcome.record, a_minute())
    assert len(smi.calls()) == calls, "nothing to undo is success"


def test_a_gpu_that_its_driver_does_not_describe_waits(slicing: TimeSliceSetup, smi: Smi) -> None:
    unknown = msgspec.structs.replace(gpu(), identity={})
    with pytest.raises(RetryableError, match="its uuid is not known now"):
        slicing.set_up("a", whole(unknown), want("Short"), None, a_minute())
    assert smi.calls() == []


def test_a_gpu_that_was_exclusive_is_so_again_afterwards(slicing: TimeSliceSetup, smi: Smi) -> None:
    smi.set_mode(UUID, "Exclusive_Process")
    slicing.set_up("a", whole(gpu()), want("Short"), None, a_minute())
    assert smi.mode(UUID) == "DEFAULT"
    slicing.set_up("b", whole(gpu()), want("Short"), None, a_minute())
    assert slicing.noted("a") == slicing.noted("b") == ["gpu-0"]
    slicing.tear_down("a", ["gpu-0"], None, a_minute())
    assert slicing.noted("a") == []
    assert smi.mode(UUID) == "DEFAULT" and smi.slice(UUID) == "1"
    slicing.tear_down("b", ["gpu-0"], None, a_minute())
    assert smi.mode(UUID) == "EXCLUSIVE_PROCESS" and smi.slice(UUID) == "0"


def test_one_interval_on_a_gpu(slicing: TimeSliceSetup, smi: Smi) -> None:
    slicing.set_up("a", [share(gpu(), "s1")], want("Short"), None, a_minute())
    slicing.set_up("b", [share(gpu(), "s2"), share(gpu(), "s3")], want("Short"), None, a_minute())
    with pytest.raises(
        RetryableError, match=r"gpu-0: timeSlicing.interval: the claim requests Long, and Short is set .* a, b"
    ):
        slicing.set_up("c", [share(gpu(), "s4")], want("Long"), None, a_minute())
    slicing.roll_back("c", ["gpu-0/s4"], want("Long"), a_minute())
    assert smi.slice(UUID) == "1"
    slicing.set_up("d", whole(gpu("gpu-1", OTHER)), want("Long"), None, a_minute())
    assert smi.slice(OTHER) == "3", "another GPU is another matter"
    slicing.tear_down("a", ["gpu-0/s1"], None, a_minute())
    slicing.tear_down("b", ["gpu-0/s2"], None, a_minute())
    assert smi.slice(UUID) == "1", "one share has it still"
    slicing.tear_down("b", ["gpu-0/s3"], None, a_minute())
    assert smi.slice(UUID) == "0"
    slicing.set_up("c", [share(gpu(), "s4")], want("Long"), None, a_minute())
    assert smi.slice(UUID) == "3"


def test_two_intervals_in_one_claim_can_never_be(slicing: TimeSliceSetup) -> None:
    slicing.set_up("a", [share(gpu(), "s1")], want("Short"), None, a_minute())
    with pytest.raises(
        PermanentError, match="the claim requests Long, and Short is set for another share in the same claim"
    ):
        slicing.set_up("a", [share(gpu(), "s2")], want("Long"), None, a_minute())


def test_a_repeat_asks_nothing_until_the_driver_may_have_forgotten(
    slicing: TimeSliceSetup, smi: Smi, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = slicing.set_up("a", whole(gpu()), want("Short"), None, a_minute())
    calls = len(smi.calls())
    assert slicing.set_up("a", whole(gpu()), want("Short"), outcome.record, a_minute()) == outcome
    assert len(smi.calls()) == calls
    (smi.folder / f"slice-{UUID}").unlink()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + timeslice.REFRESH_INTERVAL_S + 1)
    slicing.set_up("a", whole(gpu()), want("Short"), outcome.record, a_minute())
    assert smi.slice(UUID) == "1"


def test_the_next_agent_resets_the_settings_of_a_killed_one(slicing: TimeSliceSetup, smi: Smi, tmp_path: Path) -> None:
    smi.set_mode(UUID, "Exclusive_Process")
    # Killed after the interval was asked for and before anything was answered.
    smi.fail("set-timeslice")
    with pytest.raises(RetryableError, match="exit status 255: it went wrong"):
        slicing.set_up("a", whole(gpu()), want("Long"), None, a_minute())
    assert smi.mode(UUID) == "DEFAULT"
    smi.fail(None)
    later = TimeSliceSetup(smi.path, tmp_path / "state")
    later.roll_back("a", ["gpu-0"], want("Long"), a_minute())
    assert smi.slice(UUID) == "0" and smi.mode(UUID) == "EXCLUSIVE_PROCESS"
    assert list((tmp_path / "state/timeslice").iterdir()) == []


def test_a_restarted_agent_sets_it_again_and_knows_its_holders(
    slicing: TimeSliceSetup, smi: Smi, tmp_path: Path
) -> None:
    first = slicing.set_up("a", whole(gpu()), want("Long"), None, a_minute())
    (smi.folder / f"slice-{UUID}").unlink()  # the host was restarted
    later = TimeSliceSetup(smi.path, tmp_path / "state")
    with pytest.raises(RetryableError, match="Long is set for claim a"):
        later.set_up("b", whole(gpu()), want("Short"), None, a_minute())
    assert later.set_up("a", whole(gpu()), want("Long"), first.record, a_minute()) == first
    assert smi.slice(UUID) == "3"


def test_two_agents_of_a_rolling_update_set_and_reset_in_turn(
    slicing: TimeSliceSetup, smi: Smi, tmp_path: Path
) -> None:
    newer = TimeSliceSetup(smi.path, tmp_path / "state")
    slicing.set_up("a", whole(gpu()), want("Long"), None, a_minute())
    newer.tear_down("a", ["gpu-0"], None, a_minute())
    assert smi.slice(UUID) == "0"
    slicing.set_up("b", whole(gpu()), want("Long"), None, a_minute())
    assert smi.slice(UUID) == "3", "what it set before is not what it is now"


def test_an_interval_that_another_agent_could_not_set_is_set(slicing: TimeSliceSetup, smi: Smi, tmp_path: Path) -> None:
    newer = TimeSliceSetup(smi.path, tmp_path / "state")
    slicing.set_up("a", whole(gpu()), want("Long"), None, a_minute())
    slicing.tear_down("a", ["gpu-0"], None, a_minute())
    smi.fail("set-timeslice")
    with pytest.raises(RetryableError):
        newer.set_up("b", whole(gpu()), want("Long"), None, a_minute())
    smi.fail(None)
    slicing.set_up("b", whole(gpu()), want("Long"), None, a_minute())
    assert smi.slice(UUID) == "3"


def test_a_reset_that_fails_keeps_the_claim(slicing: TimeSliceSetup, smi: Smi) -> None:
    slicing.set_up("a", whole(gpu()), want("Long"), None, a_minute())
    smi.fail("set-timeslice 0", 4, "Insufficient Permissions")
    with pytest.raises(RetryableError, match=r"nvidia-smi: exit status 4: Insufficient Permissions; run it manually"):
        slicing.tear_down("a", ["gpu-0"], None, a_minute())
    smi.fail(None)
    slicing.tear_down("a", ["gpu-0"], None, a_minute())
    assert smi.slice(UUID) == "0"


@pytest.mark.parametrize("status", [6, 9, 12, 15])
def test_a_gpu_that_is_lost_holds_no_claim_up(slicing: TimeSliceSetup, smi: Smi, status: int, tmp_path: Path) -> None:
    slicing.set_up("a", whole(gpu()), want("Long"), None, a_minute())
    smi.fail(".", status, "GPU is lost")
    later = TimeSliceSetup(smi.path, tmp_path / "state")
    with pytest.raises(RetryableError, match="device gpu-0: nvidia-smi: GPU is lost"):
        later.set_up("b", whole(gpu()), want("Long"), None, a_minute())
    later.roll_back("b", ["gpu-0"], want("Long"), a_minute())
    slicing.tear_down("a", ["gpu-0"], None, a_minute())
    assert list((tmp_path / "state/timeslice").iterdir()) == []


def test_a_gpu_without_time_slices_is_an_error(slicing: TimeSliceSetup, smi: Smi) -> None:
    smi.fail("set-timeslice", 3, "Not Supported")
    with pytest.raises(PermanentError, match=rf"timeSlicing.interval: {UUID} does not support it: Not Supported"):
        slicing.set_up("a", whole(gpu()), want("Long"), None, a_minute())
    slicing.roll_back("a", ["gpu-0"], want("Long"), a_minute())


def test_a_hung_call_for_one_gpu_delays_no_other(smi: Smi, tmp_path: Path) -> None:
    slicing = TimeSliceSetup(smi.path, tmp_path / "state", deadline=10 * DEADLINE_S)
    smi.hang(UUID)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(slicing.set_up, "a", whole(gpu()), want("Long"), None, a_minute())
        try:
            eventually(smi.calls)
            slicing.set_up("b", whole(gpu("gpu-1", OTHER)), want("Long"), None, a_minute())
            assert not slow.done() and smi.slice(OTHER) == "3"
        finally:
            smi.answer_again(UUID)
        slow.result(DEADLINE_S)


def test_a_hung_call_ends_at_its_deadline(smi: Smi, tmp_path: Path) -> None:
    slicing = TimeSliceSetup(smi.path, tmp_path / "state", deadline=0.5)
    smi.hang(UUID)
    with pytest.raises(RetryableError, match=r"did not respond within 0\.5 s"):
        slicing.set_up("a", whole(gpu()), want("Long"), None, a_minute())
    with pytest.raises(RetryableError, match="is left alone"):
        slicing.set_up("a", whole(gpu()), want("Long"), None, a_minute())


def test_without_the_tool(tmp_path: Path, smi: Smi) -> None:
    with pytest.raises(RetryableError, match="nvidia-smi, which sets time slices, is missing from this host"):
        TimeSliceSetup(None, tmp_path / "state").set_up("a", whole(gpu()), want("Long"), None, a_minute())
    # A tool that is gone since does not hold what is held because of it.
    TimeSliceSetup(smi.path, tmp_path / "state").set_up("a", whole(gpu()), want("Long"), None, a_minute())
    TimeSliceSetup(None, tmp_path / "state").tear_down("a", ["gpu-0"], None, a_minute())
    assert list((tmp_path / "state/timeslice").iterdir()) == []


def test_a_damaged_file_is_set_aside(slicing: TimeSliceSetup, smi: Smi, tmp_path: Path) -> None:
    slicing.set_up("a", whole(gpu()), want("Long"), None, a_minute())
    file = tmp_path / "state/timeslice/gpu-0.json"
    file.write_text("{")
    slicing.set_up("a", whole(gpu()), want("Long"), None, a_minute())
    slicing.tear_down("a", ["gpu-0"], None, a_minute())
    assert smi.slice(UUID) == "0" and [path.name for path in file.parent.iterdir()] == ["gpu-0.json.corrupt-1"]


def test_an_unknown_compute_mode_is_not_kept(slicing: TimeSliceSetup, smi: Smi) -> None:
    smi.set_mode(UUID, "[N/A]")
    with pytest.raises(RetryableError, match=r"unexpected output: '\[N/A\]' is not a compute mode"):
        slicing.set_up("a", whole(gpu()), want("Short"), None, a_minute())
    assert slicing.noted("a") == [] and smi.slice(UUID) is None


def test_another_gpu_in_its_place_has_nothing_set(slicing: TimeSliceSetup, smi: Smi) -> None:
    slicing.set_up("a", whole(gpu()), want("Long"), None, a_minute())
    slicing.set_up("b", whole(gpu(uuid=OTHER)), want("Short"), None, a_minute())
    assert smi.slice(OTHER) == "1"


PART = Device("gpu-0-mig-1g-0", "gpu", "nvidia", "0000:1b:00.0", {}, identity={"uuid": "MIG-1", "parent": "gpu-0"})
UNSUITABLE = {
    "is for NVIDIA GPUs, not for a gpu of amd": Device("gpu-0", "gpu", "amd", "0000:1b:00.0", {}),
    "is for NVIDIA GPUs, not for a nic of mellanox": Device("nic-0", "nic", "mellanox", "0000:1b:00.0", {}),
    "is for whole GPUs": PART,
    "NVIDIA's driver": Device("gpu-0", "gpu", "nvidia", "0000:1b:00.0", {}),
}


@pytest.mark.parametrize("message", list(UNSUITABLE))
def test_unsupported_devices_are_refused(slicing: TimeSliceSetup, message: str) -> None:
    with pytest.raises(UnsuitableError, match=f"^kind: .*{message}"):
        slicing.check(UNSUITABLE[message], want("Default"))
    setup: DeviceSetup = slicing
    assert setup.default(UNSUITABLE[message]) is None


def test_impossible_configurations_are_refused(slicing: TimeSliceSetup) -> None:
    slicing.check(gpu(), want("Long"))
    slicing.check(gpu(memoryEnforcement="none"), want("Long"))
    with pytest.raises(PermanentError, match="^timeSlicing: the GPU is shared through MPS"):
        slicing.check(gpu(memoryEnforcement="mps"), want("Short"))
    old = Device(
        "gpu-0", "gpu", "nvidia", "x", {"cudaComputeCapability": Attribute(version="6.1.0")}, identity={"uuid": UUID}
    )
    slicing.check(old, want("Default"))
    volta = msgspec.structs.replace(old, attributes={"cudaComputeCapability": Attribute(version="7.0.0")})
    slicing.check(volta, want("Long"))
    with pytest.raises(PermanentError, match=r"^timeSlicing.interval: a GPU of compute capability 6.1.0"):
        slicing.check(old, want("Short"))


@pytest.mark.parametrize("uuid", ["--help", "-i", "GPU-1 --gpu-reset", "GPU-1\n", "", "--id=0"])
def test_no_name_becomes_an_option_of_the_tool(slicing: TimeSliceSetup, smi: Smi, uuid: str) -> None:
    with pytest.raises(PermanentError, match="is not the UUID of a GPU"):
        slicing.set_up("a", whole(gpu(uuid=uuid)), want("Long"), None, a_minute())
    assert smi.calls() == []
