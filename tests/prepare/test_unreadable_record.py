"""Release of a claim whose record cannot be read: by the state files of its setups, and with a log line."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from prepare.simulated_node import Partitions, SimulatedNode, claim, partition


class StatefulPartitions(Partitions):
    """Partitions with state files, here the hardware itself."""

    def noted(self, uid: str) -> Sequence[str]:
        return [key for key, owner in self.hardware.items() if owner == uid]

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        self.calls.append("tear_down")
        self.remove(uid, keys)


def damage_record(node: SimulatedNode, payload: object) -> None:
    node.partitions = StatefulPartitions(node.points, node.hardware)
    node.start()
    node.preparer.prepare(claim("a", "gpu-0", config=[partition(2)]))
    entry = node.memory.disk["a"]
    node.memory.disk["a"] = msgspec.structs.replace(entry, payload=payload)


@pytest.mark.parametrize("setups", [[dict(zip(("api_version", "kind"), Partitions.kind, strict=True))], None])
def test_setups_are_undone_by_state_files_and_the_release_is_logged(
    node: SimulatedNode, caplog: pytest.LogCaptureFixture, setups: list[dict[str, str]] | None
) -> None:
    damage_record(node, None if setups is None else {"devices": "elsewhere", "setups": setups})
    with caplog.at_level(logging.WARNING):
        assert node.preparer.unprepare("a")
    assert node.hardware == {} and node.ledger.entries() == []
    assert {"set-up undone from its own state files", "released a claim whose record cannot be read"} <= {
        record.message for record in caplog.records
    }


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ([], "the set-ups of the claim are not known"),
        ("text", "the set-ups of the claim are not known"),
        ({"devices": 1, "setups": [{"api_version": "v9", "kind": "Hologram"}]}, "Hologram was set up for it"),
    ],
)
def test_devices_stay_held_if_the_setups_are_unknown(node: SimulatedNode, payload: object, message: str) -> None:
    damage_record(node, payload)
    for _ in range(2):
        with pytest.raises(
            RetryableError, match=rf"claim default/claim-a \(a\): its record cannot be read, and {message}"
        ):
            node.preparer.unprepare("a")
        assert node.ledger.get("a") is not None
    assert node.hardware == {}, "known setups are undone nevertheless"
