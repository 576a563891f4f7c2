from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import dra_simulate
from dra_agent.diagnostic import Diagnostic
from dra_agent.errors import UsageError
from dra_agent.host import Host
from dra_agent.inventory.amd.backend import AmdBackend
from dra_agent.inventory.api import Attribute, Capacity
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device
from dra_agent.inventory.settings import InventorySettings, ShareRule
from dra_agent.inventory.shares import Shares, limit_mechanism, offered_enforcement
from dra_agent.slices import desired_slices
from dra_agent.topology import DeviceKind, PciFunction, scan

DRIVER = "dra-agent.internal"
Write = Callable[[str, object], None]


def gpu(memory: str | None = "80Gi", **limits: str) -> Device:
    capacity = {"multiprocessors": Capacity.of(132), "decoders": Capacity.of(7)}
    if memory is not None:
        capacity["memory"] = Capacity(value=memory)
    names = {name.replace("_", "-"): why for name, why in limits.items()}
    return Device(
        "gpu-a", "gpu", "nvidia", "0000:01:00.0", {"type": Attribute.of("gpu")}, capacity, memory_limits=names
    )


def offered(device: Device, *rules: ShareRule) -> tuple[Device, list[Diagnostic]]:
    problems: list[Diagnostic] = []
    (shared,) = Shares(rules, DRIVER).apply([device], problems)
    return shared, problems


def test_a_share_has_a_minimum_whole_steps_and_a_default() -> None:
    rule = ShareRule("true", "none", minimum="2Gi", step="4Gi", default="6Gi")
    shared, problems = offered(gpu("79Gi"), rule)
    assert problems == []
    assert shared.to_api()["allowMultipleAllocations"] is True
    assert shared.to_api()["capacity"]["memory"] == {
        "value": "79Gi",
        # 2 + 19 steps of 4: the last Gi is in no share.
        "requestPolicy": {"default": "6Gi", "validRange": {"min": "2Gi", "max": "78Gi", "step": "4Gi"}},
    }
    assert offered_enforcement(shared) == "none"


def test_a_request_without_an_amount_gets_all_and_unoffered_capacity_is_not_consumed() -> None:
    shared, _ = offered(gpu("81559Mi"), ShareRule("true", "none"))
    capacity = shared.to_api()["capacity"]
    assert capacity["memory"]["requestPolicy"]["default"] == "79Gi"
    nothing = {"default": "0", "validRange": {"min": "0", "max": "0"}}
    assert capacity["decoders"] == {"value": "7", "requestPolicy": nothing}
    assert capacity["multiprocessors"] == {"value": "132", "requestPolicy": nothing}


@pytest.mark.parametrize("reason", ["", "nvidia-cuda-mps-control is not found"])
def test_multiprocessors_are_offered_where_mps_limits_them(reason: str) -> None:
    shared, problems = offered(gpu(mps=reason), ShareRule("true", "mps", multiprocessors=True))
    most = shared.to_api()["capacity"]["multiprocessors"]["requestPolicy"]["validRange"]["max"]
    assert (most, offered_enforcement(shared)) == (("0", "none") if reason else ("132", "mps"))
    assert [problem.message.partition(": ")[2] for problem in problems] == (
        [f"mps cannot be used here: {reason}"] if reason else []
    )


def test_mps_on_a_mig_device_is_not_published_as_enforcement() -> None:
    mig = msgspec.structs.replace(gpu("40Gi", mps=""), identity={"parent": "gpu-whole"})
    shared, (problem,) = offered(mig, ShareRule("true", "mps", multiprocessors=True))
    assert (offered_enforcement(shared), limit_mechanism(shared)) == ("none", "mps")
    assert "EXCLUSIVE_PROCESS" in problem.message and problem.severity == "warning"
    assert shared.to_api()["capacity"]["multiprocessors"]["requestPolicy"]["validRange"]["max"] == "0"


def test_a_mechanism_that_is_missing_is_not_used_either() -> None:
    shared, _ = offered(gpu(mps="missing"), ShareRule("true", "mps"))
    assert limit_mechanism(shared) == "none"
    assert limit_mechanism(gpu(mps="")) is None


def test_a_mechanism_of_another_vendor_is_never_claimed() -> None:
    shared, (problem,) = offered(gpu(mps=""), ShareRule("true", "dmem"))
    assert offered_enforcement(shared) == "none"
    assert "it is not for such a device" in problem.message


def test_the_first_rule_that_matches_counts() -> None:
    shared, _ = offered(
        gpu(mps=""), ShareRule("false", "none"), ShareRule("true", "mps", default="4Gi"), ShareRule("true", "none")
    )
    assert offered_enforcement(shared) == "mps"


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (gpu(None), "its memory is not known"),
        (gpu("512Mi"), "less than one share"),
        (msgspec.structs.replace(gpu(), family="nic"), "only GPUs"),
        (
            msgspec.structs.replace(gpu(), attributes={f"a{n}": Attribute.of(n) for n in range(29)}),
            "32 attributes and capacities already",
        ),
    ],
    ids=["unknown", "small", "nic", "full"],
)
def test_devices_that_cannot_be_shared_stay_whole_and_are_reported(device: Device, why: str) -> None:
    shared, (problem,) = offered(device, ShareRule("true", "none"))
    assert shared == device
    assert why in problem.message


def test_a_rule_that_matches_nothing_for_lack_of_a_value_is_reported() -> None:
    _, (problem,) = offered(gpu(), ShareRule("device.attributes['dra-agent.internal'].nonesuch == 1", "none"))
    assert problem.where == "inventory.share[0].when"


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (ShareRule("true", "none", minimum="4GB"), "minimum"),
        (ShareRule("true", "none", minimum="0"), "minimum"),
        (ShareRule("true", "none", step="-1Gi"), "step"),
        (ShareRule("true", "none", step="100m"), "step"),
        (ShareRule("true", "none", default="1500Mi"), "default"),
        (ShareRule("true", "none", minimum="2Gi", default="1Gi"), "default"),
        (ShareRule("true", "mps", step="512Ki"), "step"),
        (ShareRule("true", "dmem", multiprocessors=True), "multiprocessors"),
        (ShareRule("nonsense(", "none"), "when"),
    ],
)
def test_a_rule_that_can_never_work_is_refused_with_its_field(rule: ShareRule, field: str) -> None:
    with pytest.raises(UsageError) as caught:
        Shares((rule,), DRIVER)
    assert caught.value.where == f"configuration, inventory.share[0].{field}"


def test_shares_of_a_simulated_host_are_valid_in_the_api(tmp_path: Path) -> None:
    host = dra_simulate.build("dgx-h100", tmp_path / "host")
    when = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:1b:00.0"'
    rule = ShareRule(when, "none", minimum="1Gi", default="8Gi")
    inventory = collect(host, scan(host), InventorySettings(share=(rule,)))
    assert [device.name for device in inventory.devices if device.allow_multiple_allocations] == ["gpu-0000-1b-00-0"]
    desired = desired_slices(inventory, node="n", driver=DRIVER)
    assert not desired.problems
    (published,) = [
        device for one in desired.slices for device in one["spec"]["devices"] if device.get("allowMultipleAllocations")
    ]
    assert published["attributes"]["memoryEnforcement"] == {"string": "none"}
    assert published["capacity"]["memory"]["requestPolicy"]["default"] == "8Gi"


@pytest.mark.parametrize(
    ("capacity", "reason"),
    [
        ("drm/0000:03:00.0/vram0 17163091968", ""),
        ("drm/0000:03:00.0/vram0 1\ndrm/0000:03:00.0/vram1 1", "2 regions"),
        ("drm/0000:83:00.0/vram0 17163091968", "has registered no memory"),
        ("", "6.14"),
    ],
)
def test_dmem_needs_one_region_of_the_device(
    host: Host, write: Write, function: Callable[..., PciFunction], capacity: str, reason: str
) -> None:
    if capacity:
        write("sys/fs/cgroup/dmem.capacity", capacity)
    write("sys/bus/pci/devices/0000:03:00.0/mem_info_vram_total", 16 << 30)
    amd = function("0000:03:00.0", DeviceKind.GPU, "0x1002", "0x744c", driver="amdgpu")
    problems: list[Diagnostic] = []
    (device,) = AmdBackend(host).devices([amd], problems)
    assert problems == []
    assert reason in device.memory_limits["dmem"]
    assert (device.memory_limits["dmem"] == "") == (reason == "")
    assert device.identity.get("dmem") == (None if reason else "drm/0000:03:00.0/vram0")
    shared, problems = offered(device, ShareRule("true", "dmem"))
    assert offered_enforcement(shared) == ("none" if reason else "dmem")
    assert len(problems) == (1 if reason else 0)
