"""Preparing, repeating and unpreparing, and every way in which a claim can be refused."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from dra_agent.cdi.registry import applied_edits
from dra_agent.claim import ClaimDevice
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.model import Device
from dra_agent.prepare.ledger import DeviceHeldError
from dra_agent.prepare.locks import LockedError
from eventually import eventually
from last_write import last_write
from prepare.simulated_world import DRIVER, POOL, World, claim, partition, result


def test_a_claim_gets_ids_that_resolve_to_its_device(world: World) -> None:
    answer = world.preparer.prepare(claim("uid-1", "gpu-3"))
    cdi_id = f"{DRIVER}/claim=uid-1-gpu-3"
    assert answer == [ClaimDevice(POOL, "gpu-3", ("gpus",), cdi_device_ids=(cdi_id,))]
    edits = applied_edits(world.registry(), [cdi_id])
    assert {mount.container_path for mount in edits.mounts} == {"/dev/kfd", "/dev/dri/card3", "/dev/dri/renderD131"}
    assert "DRA_AGENT_CLAIM=default/claim-uid-1" in edits.env
    assert "DRA_AGENT_REQUEST_GPUS=gpu-3" in edits.env
    assert (world.cdi / "dra-agent.internal-claim_uid-1.json").stat().st_mode & 0o777 == 0o644


def test_one_sync_per_answer(world: World) -> None:
    world.preparer.prepare(claim("a", "gpu-0"))
    assert world.memory.syncs == 1
    world.preparer.prepare(claim("a", "gpu-0"))
    assert world.memory.syncs == 1
    world.preparer.unprepare("a")
    assert world.memory.syncs == 2


def test_unprepare_frees_everything_and_can_be_repeated(world: World) -> None:
    world.preparer.prepare(claim("a", "gpu-0", "gpu-1"))
    assert world.preparer.unprepare("a") is True
    assert world.preparer.unprepare("a") is False
    assert world.preparer.unprepare("never-seen") is False
    assert list(world.cdi.iterdir()) == []
    assert world.preparer.prepare(claim("b", "gpu-0"))


def test_a_held_device_is_refused_and_the_holder_named(world: World) -> None:
    world.preparer.prepare(claim("a", "gpu-0", "gpu-1"))
    with pytest.raises(DeviceHeldError, match=r"gpu-1 is held by claim-a"):
        world.preparer.prepare(claim("b", "gpu-2", "gpu-1"))
    assert world.ledger.get("b") is None
    assert set(world.specs.claims()) == {"a"}
    assert world.preparer.prepare(claim("c", "gpu-2"))


def test_shares_and_admin_access_live_beside_a_holder(world: World) -> None:
    first, second = (result("gpu-0", shareID=f"share-{n}", consumedCapacity={"memory": f"{n}Gi"}) for n in (1, 2))
    one = world.preparer.prepare(claim("a", first))
    two = world.preparer.prepare(claim("b", second))
    assert one[0].share_id == "share-1" and two[0].cdi_device_ids == (f"{DRIVER}/claim=b-gpu-0-share-2",)
    assert "DRA_AGENT_DEVICE_GPU_0_CAPACITY_MEMORY=2Gi" in applied_edits(world.registry(), two[0].cdi_device_ids).env
    world.preparer.prepare(claim("monitor", result("gpu-0", adminAccess=True)))
    with pytest.raises(DeviceHeldError):
        world.preparer.prepare(claim("c", "gpu-0"))


def test_two_shares_of_one_device_in_one_claim_are_two_cdi_devices(world: World) -> None:
    shares = [result("gpu-0", "small", shareID="s1"), result("gpu-0", "large", shareID="s2")]
    answer = world.preparer.prepare(claim("a", *shares))
    assert len({device.cdi_device_ids for device in answer}) == 2
    assert [device.requests for device in answer] == [("small",), ("large",)]


def test_a_partition_and_its_whole_device_exclude_each_other(world: World) -> None:
    for index in (0, 1):
        whole = world.devices["gpu-0"]
        part = Device(
            f"gpu-0-part-{index}", "gpu", "amd", whole.pci_address, {}, nodes=whole.nodes, identity={"parent": "gpu-0"}
        )
        world.devices[part.name] = part
    world.preparer.prepare(claim("a", "gpu-0-part-0"))
    world.preparer.prepare(claim("b", "gpu-0-part-1"))
    with pytest.raises(DeviceHeldError):
        world.preparer.prepare(claim("c", "gpu-0"))
    world.preparer.unprepare("a")
    world.preparer.unprepare("b")
    world.preparer.prepare(claim("c", "gpu-0"))
    with pytest.raises(DeviceHeldError):
        world.preparer.prepare(claim("d", "gpu-0-part-1"))


def test_requests_are_answered_without_their_subrequest(world: World) -> None:
    answer = world.preparer.prepare(claim("a", result("gpu-0", "gpu/h100"), result("gpu-1", "gpu/h100")))
    assert [device.requests for device in answer] == [("gpu",), ("gpu",)]
    env = applied_edits(world.registry(), [name for device in answer for name in device.cdi_device_ids]).env
    assert "DRA_AGENT_REQUEST_GPU=gpu-0,gpu-1" in env


def test_devices_of_other_drivers_are_left_to_them(world: World) -> None:
    mixed = claim("a", "gpu-0", {**result("x"), "driver": "other.example"})
    assert [device.device for device in world.preparer.prepare(mixed)] == ["gpu-0"]
    theirs = claim("b", {**result("x"), "driver": "other.example"})
    assert world.preparer.prepare(theirs) == []
    assert world.ledger.get("b") is None


def test_a_repeat_gives_the_same_answer_and_writes_nothing(world: World) -> None:
    first = world.preparer.prepare(claim("a", "gpu-0", "gpu-1"))
    file = world.specs.file("a")
    before = last_write(file)
    assert world.preparer.prepare(claim("a", "gpu-0", "gpu-1")) == first
    assert last_write(file) == before


@pytest.mark.parametrize("damage", ["missing", "edited", "empty", "link", "directory gone"])
def test_a_repeat_rebuilds_a_spec_that_is_not_as_it_was(world: World, damage: str) -> None:
    first = world.preparer.prepare(claim("a", "gpu-0"))
    file = world.specs.file("a")
    good = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "edited":
        file.write_bytes(good.replace(b"/dev/dri/card0", b"/dev/dri/card1"))
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "link":
        file.rename(world.cdi / "elsewhere")
        file.symlink_to("elsewhere")
    else:
        file.unlink()
        world.cdi.rmdir()
    assert world.preparer.prepare(claim("a", "gpu-0")) == first
    assert file.read_bytes() == good and not file.is_symlink()


def test_a_missing_node_is_never_answered_as_prepared(world: World) -> None:
    node = world.host.dev_path("/dev/dri/renderD128")
    node.unlink()
    with pytest.raises(RetryableError, match=r"device gpu-0: its device node .*/renderD128 cannot be used"):
        world.preparer.prepare(claim("a", "gpu-0"))
    assert world.ledger.entries() == []
    assert not world.cdi.exists() or list(world.cdi.iterdir()) == []
    node.touch()
    world.preparer.prepare(claim("a", "gpu-0"))
    node.unlink()
    with pytest.raises(RetryableError, match=r"renderD128"):
        world.preparer.prepare(claim("a", "gpu-0"))
    assert world.ledger.get("a") is not None, "a repeat that fails must not free what the claim holds"


def test_an_unknown_device_is_named_with_its_pool(world: World) -> None:
    with pytest.raises(RetryableError, match=r"device gpu-99 of pool node-a/gpu: is not on this host now"):
        world.preparer.prepare(claim("a", "gpu-99"))
    assert world.ledger.entries() == []


def test_another_allocation_for_the_same_uid_is_refused(world: World) -> None:
    world.preparer.prepare(claim("a", "gpu-0"))
    with pytest.raises(PermanentError, match=r"prepared with other devices \(gpu-0\)"):
        world.preparer.prepare(claim("a", "gpu-1"))
    assert world.usable("a")


BAD = {
    "no metadata": {},
    "no uid": {"metadata": {"name": "x"}},
    "uid with path": {**claim("../../etc/passwd", "gpu-0")},
    "uid hidden": {**claim(".hidden", "gpu-0")},
    "uid empty": {**claim("", "gpu-0")},
    "wrong type": {"metadata": {"name": "x", "uid": "u"}, "status": {"allocation": {"devices": {"results": {}}}}},
    "twice": claim("a", "gpu-0", result("gpu-0", "more")),
}


@pytest.mark.parametrize("name", list(BAD))
def test_a_malformed_claim_is_one_clear_error(world: World, name: str) -> None:
    with pytest.raises(PermanentError) as caught:
        world.preparer.prepare(BAD[name])
    assert "claim" in str(caught.value) and caught.value.hint
    assert world.ledger.entries() == [] and not world.cdi.exists()


def test_a_claim_that_is_not_allocated_may_be_tried_again(world: World) -> None:
    unallocated = claim("a")
    del unallocated["status"]
    with pytest.raises(RetryableError, match="default/claim-a: is not allocated"):
        world.preparer.prepare(unallocated)


def test_one_claims_failure_leaves_its_neighbours_alone(world: World) -> None:
    world.devices["gpu-5"] = Device("gpu-5", "gpu", "amd", "x", {}, nodes=cast(Any, None))
    assert isinstance(world.preparer.prepare(claim("a", "gpu-0")), list)
    with pytest.raises(RetryableError):
        world.preparer.prepare(claim("b", "gpu-99"))
    with pytest.raises(DeviceHeldError):
        world.preparer.prepare(claim("c", "gpu-0"))
    with pytest.raises(TypeError):  # the plugin reports it as unexpected: tests/kubelet_plugin
        world.preparer.prepare(claim("d", "gpu-5"))
    assert isinstance(world.preparer.prepare(claim("e", "gpu-1")), list)
    assert [entry.uid for entry in world.ledger.entries()] == ["a", "e"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "Timeslicing"}, r"config\[0\].opaque.parameters.kind: 'Timeslicing' of .* known kinds: Partition"),
        ({"kind": None}, r"config\[0\].opaque.parameters.kind: is missing"),
        ({"apiVersion": "v9"}, r"'Partition' of 'v9' is not known"),
        ({"size": "two"}, r"config\[0\].opaque.parameters.size: expected `int`, got `str`"),
        ({"sise": 2}, r"config\[0\].opaque.parameters.sise: no such field"),
        ({"size": 8}, r"default/claim-a: status.*config\[0\].opaque.parameters: size: at most 7 \(device gpu-0\)"),
    ],
)
def test_configuration_is_decoded_strictly(world: World, change: dict[str, Any], message: str) -> None:
    with pytest.raises(PermanentError, match=message):
        world.preparer.prepare(claim("a", "gpu-0", config=[partition(**change)]))
    assert world.ledger.entries() == []


def test_configuration_for_other_drivers_is_not_ours_to_understand(world: World) -> None:
    theirs = {"source": "FromClass", "opaque": {"driver": "other.example", "parameters": {"kind": "Odd"}}}
    assert world.preparer.prepare(claim("a", "gpu-0", config=[theirs]))


def test_a_full_disk_under_the_ledger_loses_nothing(world: World) -> None:
    world.preparer.prepare(claim("held", "gpu-7"))
    world.memory.refuse = "no space left on device"
    with pytest.raises(RetryableError, match="no space left"):
        world.preparer.prepare(claim("a", "gpu-0"))
    with pytest.raises(RetryableError, match="no space left"):
        world.preparer.unprepare("held")
    world.memory.refuse = None
    assert world.preparer.prepare(claim("a", "gpu-0"))
    world.preparer.prepare(claim("held", "gpu-7"))
    assert world.usable("a") and world.usable("held")


def test_a_disk_that_fails_in_the_middle_is_undone_by_the_next_try(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = world.ledger.complete

    def failing(uid: str, payload: object) -> None:
        world.memory.refuse = "no space left on device"
        complete(uid, payload)

    monkeypatch.setattr(world.ledger, "complete", failing)
    with pytest.raises(RetryableError, match="no space left"):
        world.preparer.prepare(claim("a", "gpu-0", config=[partition(2)]))
    monkeypatch.setattr(world.ledger, "complete", complete)
    world.memory.refuse = None
    assert world.preparer.prepare(claim("a", "gpu-0", config=[partition(3)]))
    assert world.usable("a") and world.hardware == {"gpu-0": "a"}


def test_a_cdi_directory_that_cannot_be_written_is_an_error_that_names_it(world: World) -> None:
    world.cdi.write_text("a file where the directory should be")
    with pytest.raises(RetryableError, match=r"cdi/.*: cannot write the claim's CDI spec"):
        world.preparer.prepare(claim("a", "gpu-0"))
    assert world.ledger.entries() == []


def test_a_cdi_directory_on_a_file_system_that_takes_no_files(world: World) -> None:
    world.cdi = Path("/proc/dra-agent")
    world.start()
    with pytest.raises(RetryableError, match=r"/proc/dra-agent/.*: cannot write the claim's CDI spec"):
        world.preparer.prepare(claim("a", "gpu-0"))
    assert world.ledger.entries() == []


def until_answered(world: World, wanted: dict[str, Any]) -> list[ClaimDevice]:
    """Ask again as the kubelet does, where somebody else has a device or is slow at it."""

    def ask() -> list[ClaimDevice]:
        try:
            return world.preparer.prepare(wanted)
        except (DeviceHeldError, LockedError):
            return []

    return eventually(ask, f"{wanted['metadata']['uid']} never got its devices")


def test_many_threads_never_give_a_device_to_two_claims(world: World) -> None:
    """32 claims want 2 of 8 GPUs each, at once; whoever is refused tries again; nobody ever sees two holders."""
    holders: dict[str, str] = {}
    guard = threading.Lock()

    def live(number: int) -> None:
        uid = f"claim-{number}"
        names = [f"gpu-{number % 8}", f"gpu-{(number * 3 + 1) % 8}"]
        wanted = claim(uid, *dict.fromkeys(names))
        until_answered(world, wanted)
        with guard:
            for name in dict.fromkeys(names):
                assert name not in holders, f"{name} is held by {holders[name]} and {uid}"
                holders[name] = uid
        assert world.specs.file(uid).exists()
        with guard:
            for name in dict.fromkeys(names):
                del holders[name]
        world.preparer.unprepare(uid)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(live, range(32)))
    assert world.ledger.entries() == [] and world.specs.claims() == {}
    assert world.preparer._claims._locks == {} and world.preparer._devices._locks == {}


def test_one_claim_prepared_by_many_threads_at_once_has_one_answer(world: World) -> None:
    wanted = claim("a", "gpu-0", config=[partition(2)])
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: until_answered(world, wanted), range(16)))
    assert all(answer == answers[0] for answer in answers)
    assert world.memory.syncs == 2, "one start before the set-up, one completion"


def test_what_a_container_will_miss_is_said(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.devices["nic-0"] = Device("nic-0", "nic", "intel", "0000:31:00.0", {}, identity={"ifname": "eth7"})
    with caplog.at_level(logging.INFO):
        answer = world.preparer.prepare(claim("a", "nic-0"))
    assert "stays on the host" in answer[0].notes[0]
    (record,) = (record for record in caplog.records if record.message == "claim prepared")
    assert "stays on the host" in vars(record)["missing"][0]
    spec = json.loads(world.specs.file("a").read_text())
    env = spec["devices"][0]["containerEdits"]["env"]
    assert any(text.startswith("DRA_AGENT_DEVICE_NIC_0_NOTE=the network interface stays") for text in env)
    assert spec["cdiVersion"] == "0.3.0", "notes must not keep an old runtime from reading the file"
