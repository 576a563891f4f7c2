"""Device setups of a claim: their configuration, defaults, affected devices, and rollback."""

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
from logged import logged_by
from prepare.simulated_node import POOL, PartitionParameters, SimulatedNode, claim, partition, result


def env(node: SimulatedNode, prepared: Any) -> tuple[str, ...]:
    return applied_edits(node.registry(), prepared.cdi_device_ids).env


def with_nic(node: SimulatedNode) -> dict[str, Any]:
    node.add_interface("eth7")
    node.devices["nic-0"] = Device("nic-0", "nic", "intel", "0000:31:00.0", {}, identity={"ifname": "eth7"})
    return result("nic-0", "nic")


def test_the_last_configuration_for_a_request_is_used(node: SimulatedNode) -> None:
    claim_ = claim(
        "a",
        result("gpu-0", "big/h100"),
        result("gpu-1", "small"),
        config=[partition(1), partition(4, requests=["big"]), partition(9, requests=["nobody"])],
    )
    prepared = node.preparer.prepare(claim_)
    registry = node.registry()
    assert "PARTITION=4" in applied_edits(registry, prepared[0].cdi_device_ids).env
    assert "PARTITION=1" in applied_edits(registry, prepared[1].cdi_device_ids).env


def test_a_failing_setup_is_rolled_back(node: SimulatedNode) -> None:
    with pytest.raises(RetryableError, match="no room for the partition"):
        node.preparer.prepare(claim("a", "gpu-0", "gpu-1", config=[partition(2, fail=True)]))
    assert node.hardware == {} and node.ledger.entries() == [] and node.specs.claims() == {}


class UnforeseenError(Exception):
    """An error that no code anticipates."""


@pytest.mark.parametrize(
    ("error", "has_traceback"), [(RetryableError("its driver hangs", where="gpu-0"), False), (UnforeseenError(), True)]
)
def test_a_failed_rollback_is_logged_with_a_traceback_if_unexpected(
    node: SimulatedNode,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    has_traceback: bool,
) -> None:
    def roll_back(*_: object) -> None:
        raise error

    monkeypatch.setattr(node.partitions, "roll_back", roll_back)
    with pytest.raises(RetryableError, match="no room for the partition"):
        node.preparer.prepare(claim("a", "gpu-0", config=[partition(2, fail=True)]))
    (record,) = [record for record in caplog.records if "not undone yet" in record.message]
    assert bool(record.exc_info) is has_traceback and record.__dict__["reason"] == str(error)


def test_a_setup_is_repaired_on_a_repeat_and_undone_at_the_end(node: SimulatedNode) -> None:
    claim_ = claim("a", "gpu-0", config=[partition(2)])
    node.preparer.prepare(claim_)
    node.hardware.clear()  # the partition was destroyed externally
    node.preparer.prepare(claim_)
    assert node.hardware == {"gpu-0": "a"}
    node.preparer.unprepare("a")
    assert node.hardware == {} and node.partitions.calls[-1] == "tear_down"


def test_configuration_of_the_claim_overrides_that_of_the_class(node: SimulatedNode) -> None:
    classes = [partition(1, requests=["big"]), partition(2, requests=["small"])]
    for entry in classes:
        entry["source"] = "FromClass"
    prepared = node.preparer.prepare(
        claim(
            "a",
            result("gpu-0", "big"),
            result("gpu-1", "small"),
            config=[*classes, partition(4, requests=["big"])],
        )
    )
    assert "PARTITION=4" in env(node, prepared[0]) and "PARTITION=2" in env(node, prepared[1])


@pytest.mark.parametrize(
    ("entries", "conflict"),
    [
        (({}, {}), True),
        (({"requests": ["one"]}, {"requests": ["two"]}), False),
        (({}, {"source": "FromClaim"}), False),
    ],
)
def test_settings_of_two_classes_without_requests_are_reported(
    node: SimulatedNode, caplog: pytest.LogCaptureFixture, entries: tuple[dict[str, Any], ...], conflict: bool
) -> None:
    config = [{**partition(count), "source": "FromClass", **more} for count, more in enumerate(entries, 1)]
    node.preparer.prepare(claim("a", result("gpu-0", "one"), result("gpu-1", "two"), config=config))
    messages = [record.getMessage() for record in logged_by(caplog, "dra_agent.prepare.plan")]
    assert len(messages) == conflict
    assert all("config[0] and status" in text and "the last one applies" in text for text in messages)


def test_an_invalid_class_configuration_may_be_overridden(node: SimulatedNode) -> None:
    impossible = {**partition(8, requests=["gpus"]), "source": "FromClass"}
    with pytest.raises(PermanentError, match=r"config\[0\].opaque.parameters: size: at most 7 \(device gpu-0\); ask"):
        node.preparer.prepare(claim("a", "gpu-0", config=[impossible]))
    assert node.ledger.entries() == [] and node.partitions.calls == []
    assert "PARTITION=3" in env(node, node.preparer.prepare(claim("a", "gpu-0", config=[impossible, partition(3)]))[0])


def test_configuration_for_all_requests_skips_other_device_families(node: SimulatedNode) -> None:
    nic = with_nic(node)
    prepared = node.preparer.prepare(claim("a", "gpu-0", nic, config=[partition(1), partition(2)]))
    assert "PARTITION=2" in env(node, prepared[0]) and node.hardware == {"gpu-0": "a"}
    assert not any(text.startswith("PARTITION") for text in env(node, prepared[1]))


@pytest.mark.parametrize("requests", [[], ["nic"]])
def test_configuration_without_a_matching_device_is_refused(node: SimulatedNode, requests: list[str]) -> None:
    nic = with_nic(node)
    devices = [nic] if not requests else ["gpu-0", nic]
    with pytest.raises(PermanentError, match=r"parameters: kind: a nic has no partitions \(device nic-0\)"):
        node.preparer.prepare(claim("a", *devices, config=[partition(1, requests=requests)]))
    assert node.ledger.entries() == []


def test_default_parameters_are_set_up(node: SimulatedNode) -> None:
    node.partitions.defaults = {
        "gpu-0": PartitionParameters(1),
        "gpu-1": PartitionParameters(1),
        "gpu-2": PartitionParameters(5),
        "gpu-3": PartitionParameters(6),
    }
    names = ["gpu-0", "gpu-1", "gpu-2", "gpu-4"]
    prepared = node.preparer.prepare(claim("a", *names, result("gpu-3", "other"), config=[partition(7, ["other"])]))
    sizes = [[text for text in env(node, device_) if text.startswith("PARTITION")] for device_ in prepared]
    assert sizes == [["PARTITION=1"], ["PARTITION=1"], ["PARTITION=5"], [], ["PARTITION=7"]]
    # Devices with equal defaults share a step; a restarted agent can undo all steps.
    assert node.partitions.calls == ["set_up"] * 3
    recorded = [(step["devices"], step["parameters"]["size"]) for step in node.memory.disk["a"].payload["setups"]]
    assert recorded == [(["gpu-3"], 7), (["gpu-0", "gpu-1"], 1), (["gpu-2"], 5)]
    node.partitions.defaults.clear()
    node.crash_and_restart()
    assert node.preparer.recovery.recover().kept == ("a",)
    node.preparer.unprepare("a")
    assert node.hardware == {}


def test_a_default_setup_that_fails_is_rolled_back(node: SimulatedNode) -> None:
    node.partitions.defaults = {"gpu-0": PartitionParameters(1), "gpu-1": PartitionParameters(2, fail=True)}
    with pytest.raises(RetryableError, match="no room"):
        node.preparer.prepare(claim("a", "gpu-0", "gpu-1"))
    assert node.hardware == {} and node.ledger.entries() == []
    assert node.partitions.calls == ["set_up", "set_up", "roll_back", "roll_back"]


def test_admin_access_causes_no_setup(node: SimulatedNode) -> None:
    node.partitions.defaults = {"gpu-0": PartitionParameters(1)}
    watching = result("gpu-0", "watch", adminAccess=True)
    prepared = node.preparer.prepare(claim("monitor", watching, config=[partition(8)]))
    assert node.partitions.calls == [] and not any("PARTITION" in text for text in env(node, prepared[0]))
    # A device that one claim holds and accesses as admin counts as held.
    node.preparer.unprepare("monitor")
    node.preparer.prepare(claim("both", watching, result("gpu-0")))
    assert node.hardware == {"gpu-0": "both"}


def test_each_share_is_set_up_and_undone_separately(node: SimulatedNode) -> None:
    def share(name: str, request: str) -> dict[str, Any]:
        return result("gpu-0", request, shareID=name, consumedCapacity={"memory": "4Gi"})

    config = [partition(1, requests=["left"]), partition(2, requests=["right"])]
    prepared = node.preparer.prepare(claim("a", share("s1", "left"), share("s2", "right"), config=config))
    assert "PARTITION=1" in env(node, prepared[0]) and "PARTITION=2" in env(node, prepared[1])
    node.preparer.prepare(claim("b", share("s3", "gpus"), config=[partition(3)]))
    assert node.partitions.seen == [
        SetupDevice(
            ClaimDevice(POOL, "gpu-0", ("gpus",), "s3", consumed_capacity={"memory": "4Gi"}), node.devices["gpu-0"]
        ),
    ]
    assert node.hardware == {"gpu-0/s1": "a", "gpu-0/s2": "a", "gpu-0/s3": "b"}
    node.crash_and_restart()
    assert node.preparer.recovery.recover().kept == ("a", "b")
    restored = node.partitions.seen[0].allocated
    assert restored.key == "gpu-0/s3" and restored.consumed_capacity == {"memory": "4Gi"}
    node.preparer.unprepare("a")
    assert node.hardware == {"gpu-0/s3": "b"}


class ClockParameters(msgspec.Struct, forbid_unknown_fields=True):
    clock: int = 0


class ClockSetup:
    """A second device setup that records its calls together with those of the first."""

    kind = ("config.dra-agent.internal/v1", "Clock")
    parameters = ClockParameters

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def default(self, device: Device) -> msgspec.Struct | None:
        return None

    def check(self, device: Device, parameters: ClockParameters) -> None:
        pass

    def set_up(
        self, uid: str, devices: Sequence[SetupDevice], parameters: ClockParameters, previous: Any, deadline: Deadline
    ) -> SetupOutcome:
        self.calls.append(f"clock {parameters.clock}")
        return SetupOutcome(None, {})

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        self.calls.append("clock reset")

    def roll_back(self, uid: str, keys: Sequence[str], parameters: ClockParameters, deadline: Deadline) -> None:
        self.calls.append("clock reset")


def test_setups_run_in_order_and_are_undone_in_reverse(node: SimulatedNode) -> None:
    node.more_setups = [ClockSetup(node.partitions.calls)]
    node.start()
    version, kind = ClockSetup.kind
    clock = {
        "opaque": {"driver": "dra-agent.internal", "parameters": {"apiVersion": version, "kind": kind, "clock": 5}}
    }
    # The partition comes first, independent of the order in the claim.
    node.preparer.prepare(claim("a", "gpu-0", config=[clock, partition(1)]))
    node.preparer.unprepare("a")
    assert node.partitions.calls == ["set_up", "clock 5", "clock reset", "tear_down"]


def test_a_setup_after_the_deadline_is_not_started(
    node: SimulatedNode, monkeypatch: pytest.MonkeyPatch, deadline_clock: DeadlineClock
) -> None:
    """The setup before it took all of the time; its rollback has a separate timeout."""
    node.more_setups = [ClockSetup(node.partitions.calls)]
    node.start()
    version, kind = ClockSetup.kind
    clock = {
        "opaque": {"driver": "dra-agent.internal", "parameters": {"apiVersion": version, "kind": kind, "clock": 5}}
    }
    timeouts: list[float] = []
    set_up = node.partitions.set_up

    def set_up_slowly(*arguments: Any) -> SetupOutcome:
        deadline_clock.pass_(11)
        return set_up(*arguments)

    def record_rollback(*arguments: Any) -> None:
        timeouts.append(arguments[-1].remaining())
        node.partitions.remove(arguments[0], arguments[1])

    monkeypatch.setattr(node.partitions, "set_up", set_up_slowly)
    monkeypatch.setattr(node.partitions, "roll_back", record_rollback)
    with pytest.raises(RetryableError, match="claim a: its caller no longer waits for it"):
        node.preparer.prepare(claim("a", "gpu-0", config=[clock, partition(1)]), Deadline.of(10))
    assert node.partitions.calls == ["set_up", "clock reset"], "no clock is set, and a possible one is reset"
    assert node.hardware == {} and node.ledger.entries() == []
    assert timeouts == [UNDO_TIMEOUT_S]
    monkeypatch.setattr(node.partitions, "set_up", set_up)
    assert node.preparer.prepare(claim("a", "gpu-0", config=[clock, partition(1)]))


def test_a_repeated_setup_is_undone_with_its_latest_record(node: SimulatedNode) -> None:
    claim_ = claim("a", "gpu-0", config=[partition(2)])
    node.preparer.prepare(claim_)
    syncs = node.memory.syncs
    node.preparer.prepare(claim_)
    assert node.memory.syncs == syncs, "a repeat without changes writes nothing"
    node.hardware.clear()
    node.partitions.generation = 1  # after a reboot the partition has another identity
    node.crash_and_restart()
    assert node.preparer.recovery.recover().problems == ()
    assert node.memory.disk["a"].payload["setups"][0]["record"] == {"size": 2, "generation": 1}
    assert node.memory.disk["a"].state == "completed" and node.usable("a")
    node.preparer.unprepare("a")
    assert node.hardware == {}


def test_a_claim_of_an_unknown_setup_is_kept_and_reported(node: SimulatedNode) -> None:
    node.preparer.prepare(claim("a", "gpu-0", config=[partition(2)]))
    node.has_partitions = False
    node.start()
    with pytest.raises(PermanentError, match=r"its set-up 'Partition' of .* is not known to this agent"):
        node.preparer.prepare(claim("a", "gpu-0", config=[partition(2)]))
    with pytest.raises(RetryableError, match="so it cannot be undone"):
        node.preparer.unprepare("a")
    node.has_partitions = True
    node.start()
    assert node.preparer.unprepare("a") and node.hardware == {}


def test_a_record_of_an_earlier_version_is_undone(node: SimulatedNode) -> None:
    """Such a record has device names only, without shares."""
    node.preparer.prepare(claim("a", "gpu-0", config=[partition(2)]))
    entry = node.memory.disk["a"]
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
    node.crash_and_restart()
    assert node.preparer.recovery.recover().kept == ("a",)
    assert node.preparer.unprepare("a") and node.hardware == {}
