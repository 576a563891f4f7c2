"""What is set up for a claim: by whose configuration, by default, for which of its devices, and how it is undone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from deadlines import DeadlineClock
from dra_agent.cdi.registry import applied_edits
from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.model import Device
from dra_agent.prepare.preparer import UNDO_TIMEOUT_S
from dra_agent.prepare.setup import SetupDevice, SetupOutcome
from prepare.simulated_world import POOL, PartitionParameters, Partitions, World, claim, partition, result


def env(world: World, answer: Any) -> tuple[str, ...]:
    return applied_edits(world.registry(), answer.cdi_device_ids).env


def with_nic(world: World) -> dict[str, Any]:
    world.devices["nic-0"] = Device("nic-0", "nic", "intel", "0000:31:00.0", {}, identity={"ifname": "eth7"})
    return result("nic-0", "nic")


def test_the_last_configuration_that_names_a_request_wins(world: World) -> None:
    wanted = claim(
        "a",
        result("gpu-0", "big/h100"),
        result("gpu-1", "small"),
        config=[partition(1), partition(4, requests=["big"]), partition(9, requests=["nobody"])],
    )
    answer = world.preparer.prepare(wanted)
    registry = world.registry()
    assert "PARTITION=4" in applied_edits(registry, answer[0].cdi_device_ids).env
    assert "PARTITION=1" in applied_edits(registry, answer[1].cdi_device_ids).env


def test_a_failing_set_up_is_rolled_back(world: World) -> None:
    with pytest.raises(RetryableError, match="no room for the partition"):
        world.preparer.prepare(claim("a", "gpu-0", "gpu-1", config=[partition(2, fail=True)]))
    assert world.hardware == {} and world.ledger.entries() == [] and world.specs.claims() == {}


class UnforeseenError(Exception):
    """What nobody expected."""


@pytest.mark.parametrize(
    ("error", "traced"), [(RetryableError("its driver hangs", where="gpu-0"), False), (UnforeseenError(), True)]
)
def test_what_is_not_undone_yet_is_one_line_in_the_log_where_it_was_to_be_expected(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, traced: bool
) -> None:
    def roll_back(*_: object) -> None:
        raise error

    monkeypatch.setattr(world.partitions, "roll_back", roll_back)
    with pytest.raises(RetryableError, match="no room for the partition"):
        world.preparer.prepare(claim("a", "gpu-0", config=[partition(2, fail=True)]))
    (said,) = [record for record in caplog.records if "not undone yet" in record.message]
    assert bool(said.exc_info) is traced and said.__dict__["reason"] == str(error)


def test_a_set_up_is_mended_on_a_repeat_and_undone_at_the_end(world: World) -> None:
    wanted = claim("a", "gpu-0", config=[partition(2)])
    world.preparer.prepare(wanted)
    world.hardware.clear()  # somebody destroyed the partition
    world.preparer.prepare(wanted)
    assert world.hardware == {"gpu-0": "a"}
    world.preparer.unprepare("a")
    assert world.hardware == {} and world.partitions.calls[-1] == "tear_down"


def test_a_class_is_overridden_by_the_claim_where_both_speak_of_a_device(world: World) -> None:
    classes = [partition(1, requests=["big"]), partition(2, requests=["small"])]
    for entry in classes:
        entry["source"] = "FromClass"
    answer = world.preparer.prepare(
        claim(
            "a",
            result("gpu-0", "big"),
            result("gpu-1", "small"),
            config=[*classes, partition(4, requests=["big"])],
        )
    )
    assert "PARTITION=4" in env(world, answer[0]) and "PARTITION=2" in env(world, answer[1])


def test_a_class_that_asks_for_what_cannot_be_is_no_error_where_the_claim_overrides_it(world: World) -> None:
    impossible = {**partition(8, requests=["gpus"]), "source": "FromClass"}
    with pytest.raises(PermanentError, match=r"config\[0\].opaque.parameters: size: at most 7 \(device gpu-0\); ask"):
        world.preparer.prepare(claim("a", "gpu-0", config=[impossible]))
    assert world.ledger.entries() == [] and world.partitions.calls == []
    assert "PARTITION=3" in env(
        world, world.preparer.prepare(claim("a", "gpu-0", config=[impossible, partition(3)]))[0]
    )


def test_configuration_of_no_request_passes_over_devices_of_another_kind(world: World) -> None:
    nic = with_nic(world)
    answer = world.preparer.prepare(claim("a", "gpu-0", nic, config=[partition(1), partition(2)]))
    assert "PARTITION=2" in env(world, answer[0]) and world.hardware == {"gpu-0": "a"}
    assert not any(text.startswith("PARTITION") for text in env(world, answer[1]))


@pytest.mark.parametrize("requests", [[], ["nic"]])
def test_configuration_that_no_device_is_for_is_refused(world: World, requests: list[str]) -> None:
    nic = with_nic(world)
    devices = [nic] if not requests else ["gpu-0", nic]
    with pytest.raises(PermanentError, match=r"parameters: kind: a nic has no partitions \(device nic-0\)"):
        world.preparer.prepare(claim("a", *devices, config=[partition(1, requests=requests)]))
    assert world.ledger.entries() == []


def test_what_is_set_up_by_default(world: World) -> None:
    world.partitions.defaults = {
        "gpu-0": PartitionParameters(1),
        "gpu-1": PartitionParameters(1),
        "gpu-2": PartitionParameters(5),
        "gpu-3": PartitionParameters(6),
    }
    names = ["gpu-0", "gpu-1", "gpu-2", "gpu-4"]
    answer = world.preparer.prepare(claim("a", *names, result("gpu-3", "other"), config=[partition(7, ["other"])]))
    sizes = [[text for text in env(world, one) if text.startswith("PARTITION")] for one in answer]
    assert sizes == [["PARTITION=1"], ["PARTITION=1"], ["PARTITION=5"], [], ["PARTITION=7"]]
    # The same by default is one step; a restarted agent knows how to undo all of them.
    assert world.partitions.calls == ["set_up"] * 3
    recorded = [(step["devices"], step["parameters"]["size"]) for step in world.memory.disk["a"].payload["setups"]]
    assert recorded == [(["gpu-3"], 7), (["gpu-0", "gpu-1"], 1), (["gpu-2"], 5)]
    world.partitions.defaults.clear()
    world.crash_and_restart()
    assert world.preparer.recover().kept == ("a",)
    world.preparer.unprepare("a")
    assert world.hardware == {}


def test_a_default_that_fails_half_way_is_rolled_back(world: World) -> None:
    world.partitions.defaults = {"gpu-0": PartitionParameters(1), "gpu-1": PartitionParameters(2, fail=True)}
    with pytest.raises(RetryableError, match="no room"):
        world.preparer.prepare(claim("a", "gpu-0", "gpu-1"))
    assert world.hardware == {} and world.ledger.entries() == []
    assert world.partitions.calls == ["set_up", "set_up", "roll_back", "roll_back"]


def test_who_only_watches_a_device_changes_nothing_of_it(world: World) -> None:
    world.partitions.defaults = {"gpu-0": PartitionParameters(1)}
    watching = result("gpu-0", "watch", adminAccess=True)
    answer = world.preparer.prepare(claim("monitor", watching, config=[partition(8)]))
    assert world.partitions.calls == [] and not any("PARTITION" in text for text in env(world, answer[0]))
    # The same device held and watched by one claim is held.
    world.preparer.unprepare("monitor")
    world.preparer.prepare(claim("both", watching, result("gpu-0")))
    assert world.hardware == {"gpu-0": "both"}


def test_each_share_is_set_up_and_undone_on_its_own(world: World) -> None:
    def share(name: str, request: str) -> dict[str, Any]:
        return result("gpu-0", request, shareID=name, consumedCapacity={"memory": "4Gi"})

    config = [partition(1, requests=["left"]), partition(2, requests=["right"])]
    answer = world.preparer.prepare(claim("a", share("s1", "left"), share("s2", "right"), config=config))
    assert "PARTITION=1" in env(world, answer[0]) and "PARTITION=2" in env(world, answer[1])
    world.preparer.prepare(claim("b", share("s3", "gpus"), config=[partition(3)]))
    assert world.partitions.seen == [
        SetupDevice(
            ClaimDevice(POOL, "gpu-0", ("gpus",), "s3", consumed_capacity={"memory": "4Gi"}), world.devices["gpu-0"]
        ),
    ]
    assert world.hardware == {"gpu-0/s1": "a", "gpu-0/s2": "a", "gpu-0/s3": "b"}
    world.crash_and_restart()
    assert world.preparer.recover().kept == ("a", "b")
    again = world.partitions.seen[0].allocated
    assert again.key == "gpu-0/s3" and again.consumed_capacity == {"memory": "4Gi"}
    world.preparer.unprepare("a")
    assert world.hardware == {"gpu-0/s3": "b"}


class Lock(msgspec.Struct, forbid_unknown_fields=True):
    clock: int = 0


class Clocks:
    """A second set-up, whose calls are noted beside the first one's."""

    kind = ("config.dra-agent.internal/v1", "Clock")
    parameters = Lock

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def default(self, device: Device) -> msgspec.Struct | None:
        return None

    def check(self, device: Device, parameters: Lock) -> None:
        pass

    def set_up(
        self, uid: str, devices: Sequence[SetupDevice], parameters: Lock, previous: Any, deadline: Deadline
    ) -> SetupOutcome:
        self.calls.append(f"clock {parameters.clock}")
        return SetupOutcome(None, {})

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        self.calls.append("clock reset")

    def roll_back(self, uid: str, keys: Sequence[str], parameters: Lock, deadline: Deadline) -> None:
        self.calls.append("clock reset")


def test_set_ups_come_in_the_agents_order_and_go_in_reverse(world: World) -> None:
    world.more_setups = [Clocks(world.partitions.calls)]
    world.start()
    version, kind = Clocks.kind
    clock = {
        "opaque": {"driver": "dra-agent.internal", "parameters": {"apiVersion": version, "kind": kind, "clock": 5}}
    }
    # A partition is made before anything is set on it, whatever the order in which the claim asks.
    world.preparer.prepare(claim("a", "gpu-0", config=[clock, partition(1)]))
    world.preparer.unprepare("a")
    assert world.partitions.calls == ["set_up", "clock 5", "clock reset", "tear_down"]


def test_a_set_up_that_nobody_waits_for_any_more_is_not_begun(
    world: World, monkeypatch: pytest.MonkeyPatch, deadline_clock: DeadlineClock
) -> None:
    """The one before it took all of the caller's time; it is undone in a time of its own."""
    world.more_setups = [Clocks(world.partitions.calls)]
    world.start()
    version, kind = Clocks.kind
    clock = {
        "opaque": {"driver": "dra-agent.internal", "parameters": {"apiVersion": version, "kind": kind, "clock": 5}}
    }
    given: list[float] = []
    set_up = world.partitions.set_up

    def slow(*arguments: Any) -> SetupOutcome:
        deadline_clock.pass_(11)
        return set_up(*arguments)

    def undone(*arguments: Any) -> None:
        given.append(arguments[-1].remaining())
        world.partitions._remove(arguments[0], arguments[1])

    monkeypatch.setattr(world.partitions, "set_up", slow)
    monkeypatch.setattr(world.partitions, "roll_back", undone)
    with pytest.raises(RetryableError, match="claim a: its caller no longer waits for it"):
        world.preparer.prepare(claim("a", "gpu-0", config=[clock, partition(1)]), Deadline.of(10))
    assert world.partitions.calls == ["set_up", "clock reset"], "no clock is set, and what may have been is reset"
    assert world.hardware == {} and world.ledger.entries() == []
    assert given == [UNDO_TIMEOUT_S]
    monkeypatch.setattr(world.partitions, "set_up", set_up)
    assert world.preparer.prepare(claim("a", "gpu-0", config=[clock, partition(1)]))


def test_a_set_up_that_had_to_be_made_anew_is_undone_as_it_is_now(world: World) -> None:
    wanted = claim("a", "gpu-0", config=[partition(2)])
    world.preparer.prepare(wanted)
    syncs = world.memory.syncs
    world.preparer.prepare(wanted)
    assert world.memory.syncs == syncs, "a repeat that changes nothing writes nothing"
    world.hardware.clear()
    world.partitions.generation = 1  # the host was restarted: what stands now has another identity
    world.crash_and_restart()
    assert world.preparer.recover().problems == ()
    assert world.memory.disk["a"].payload["setups"][0]["record"] == {"size": 2, "generation": 1}
    assert world.memory.disk["a"].state == "completed" and world.usable("a")
    world.preparer.unprepare("a")
    assert world.hardware == {}


def test_a_claim_of_a_set_up_that_is_gone_is_kept_and_named(world: World) -> None:
    world.preparer.prepare(claim("a", "gpu-0", config=[partition(2)]))
    world.preparer._setups = {}
    with pytest.raises(PermanentError, match=r"its set-up 'Partition' of .* is not known to this agent"):
        world.preparer.prepare(claim("a", "gpu-0", config=[partition(2)]))
    with pytest.raises(RetryableError, match="so it cannot be undone"):
        world.preparer.unprepare("a")
    world.preparer._setups = {Partitions.kind: world.partitions}
    assert world.preparer.unprepare("a") and world.hardware == {}


def test_a_record_of_an_earlier_agent_is_undone(world: World) -> None:
    """Written before shares were set up: devices by name, and nothing else of them."""
    world.preparer.prepare(claim("a", "gpu-0", config=[partition(2)]))
    entry = world.memory.disk["a"]
    assert entry.payload["setups"] == [
        {
            "api_version": "config.dra-agent.internal/v1",
            "kind": "Partition",
            "devices": ["gpu-0"],
            "parameters": {"apiVersion": "config.dra-agent.internal/v1", "kind": "Partition", "size": 2},
            "done": True,
            "record": {"size": 2, "generation": 0},
        }
    ]
    assert [(item.pool, item.device) for item in entry.devices] == [(POOL, "gpu-0")]
    world.crash_and_restart()
    assert world.preparer.recover().kept == ("a",)
    assert world.preparer.unprepare("a") and world.hardware == {}
