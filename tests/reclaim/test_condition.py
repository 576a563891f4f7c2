"""The node condition of a reclaim, and ownership of the cordon."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dra_agent.reclaim.announcements import cancelled_message, condition_of, condition_type, has_notice_condition
from dra_agent.reclaim.node_status import cordoned_by
from dra_agent.reclaim.release_tracker import is_created_for_pod
from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.state import ReclaimState, apply

T0 = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
LATER = T0 + timedelta(seconds=40)
DRIVER = "dra-agent.internal"


def notice(source: str = "aws.spot", deadline: datetime | None = LATER) -> ReclaimState:
    return apply(ReclaimState("b"), Signal(source, "notice", "e", "spot interruption", deadline), T0)


def test_the_condition_of_a_notice_has_source_and_deadline() -> None:
    condition = condition_of(notice(), DRIVER, LATER)
    assert condition == {
        "type": "dra-agent.internal/ReclaimNotice",
        "status": "True",
        "reason": "AwsSpot",
        "message": "the node is reclaimed at 2026-01-31T12:00:40+00:00 (aws.spot: spot interruption)",
        "lastTransitionTime": "2026-01-31T12:00:00Z",
        "lastHeartbeatTime": "2026-01-31T12:00:00Z",
    }
    assert "the node is reclaimed soon" in condition_of(notice(deadline=None), DRIVER, LATER)["message"]
    assert condition_of(notice("operator"), DRIVER, LATER)["reason"] == "Operator"


def test_a_source_becomes_a_valid_condition_reason() -> None:
    """The API server accepts letters, digits, `_`, `,` and `:` only."""
    assert condition_of(notice("node-problem.disk"), DRIVER, LATER)["reason"] == "NodeProblemDisk"


def test_a_long_message_is_truncated() -> None:
    condition_state = apply(ReclaimState("b"), Signal("file", "notice", "e", "x" * 5000, None), T0)
    message = condition_of(condition_state, DRIVER, LATER)["message"]
    assert len(message) == 1024 and message.startswith("the node is reclaimed soon (file: xxx")


def test_without_a_notice_the_condition_is_false() -> None:
    canceled = apply(notice(), Signal("aws.spot", "clear", "e", ""), LATER)
    assert canceled.phase == "cancelled"
    condition = condition_of(canceled, DRIVER, LATER + timedelta(hours=1))
    assert (condition["status"], condition["reason"]) == ("False", "Cancelled")
    assert condition["lastTransitionTime"] == "2026-01-31T12:00:40Z", "the time of the cancellation, not of the write"
    nothing = condition_of(ReclaimState("b"), DRIVER, T0)
    assert (nothing["status"], nothing["reason"]) == ("False", "NothingAnnounced")
    hint = apply(ReclaimState("b"), Signal("aws.rebalance", "hint", "e", "maybe"), T0)
    assert condition_of(hint, DRIVER, T0)["status"] == "False"


@pytest.mark.parametrize(("refused", "text"), [(1, "1 claim was"), (2, "2 claims were")])
def test_a_withdrawal_reports_refused_claims(refused: int, text: str) -> None:
    withdrawal = "the reclaim was withdrawn; devices can be allocated again"
    assert cancelled_message(0) == withdrawal
    assert cancelled_message(refused).startswith(f"{withdrawal}; {text} refused meanwhile: ")


def test_only_the_condition_of_this_driver_counts() -> None:
    def node(kind: str, status: str) -> dict[str, object]:
        return {"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": kind, "status": status}]}}

    assert has_notice_condition(node(condition_type(DRIVER), "True"), DRIVER)
    assert not has_notice_condition(node(condition_type(DRIVER), "False"), DRIVER)
    assert not has_notice_condition(node(condition_type("another"), "True"), DRIVER)
    assert not has_notice_condition({}, DRIVER)


def test_a_foreign_cordon_is_not_removed() -> None:
    def node(manager: str, field: str = "f:unschedulable") -> dict[str, object]:
        fields = [{"manager": manager, "fieldsV1": {"f:spec": {field: {}}}}]
        return {"metadata": {"managedFields": fields}, "spec": {"unschedulable": True}}

    assert cordoned_by(node("me"), "me")
    assert not cordoned_by(node("kubectl"), "me")
    assert not cordoned_by(node("me", "f:taints"), "me")
    assert not cordoned_by({"metadata": {}, "spec": {}}, "me")
    assert cordoned_by({"spec": {"unschedulable": True}}, "me"), (
        "without managedFields, removing the own cordon is harmless"
    )


def test_claims_created_for_a_pod_are_recognized() -> None:
    def owned(**owner: object) -> dict[str, object]:
        return {"metadata": {"ownerReferences": [owner]}}

    assert is_created_for_pod(owned(kind="Pod", controller=True))
    assert not is_created_for_pod({"metadata": {}})
    assert not is_created_for_pod(owned(kind="PodGroup", controller=True))
    assert not is_created_for_pod(owned(kind="Pod"))
