"""Releasing a claim whose record this agent cannot read: by what its set-ups have noted, and never in silence."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from prepare.simulated_world import Partitions, World, claim, partition


class NotingPartitions(Partitions):
    """Knows by its notes, here the hardware itself, what a claim has."""

    def noted(self, uid: str) -> Sequence[str]:
        return [key for key, owner in self.hardware.items() if owner == uid]

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        self.calls.append("tear_down")
        self._remove(uid, keys)


def damaged(world: World, payload: object) -> None:
    world.partitions = NotingPartitions(world.points, world.hardware)
    world.start()
    world.preparer.prepare(claim("a", "gpu-0", config=[partition(2)]))
    entry = world.memory.disk["a"]
    world.memory.disk["a"] = msgspec.structs.replace(entry, payload=payload)


@pytest.mark.parametrize("setups", [[dict(zip(("api_version", "kind"), Partitions.kind, strict=True))], None])
def test_what_its_set_ups_noted_is_undone_and_the_release_is_reported(
    world: World, caplog: pytest.LogCaptureFixture, setups: list[dict[str, str]] | None
) -> None:
    damaged(world, None if setups is None else {"devices": "elsewhere", "setups": setups})
    with caplog.at_level(logging.WARNING):
        assert world.preparer.unprepare("a")
    assert world.hardware == {} and world.ledger.entries() == []
    assert {"set-up undone from its own state files", "released a claim whose record cannot be read"} <= {
        record.message for record in caplog.records
    }


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ([], "what was set up for it is not known"),
        ("text", "what was set up for it is not known"),
        ({"devices": 1, "setups": [{"api_version": "v9", "kind": "Hologram"}]}, "Hologram was set up for it"),
    ],
)
def test_devices_stay_held_where_nobody_knows_what_was_set_up(world: World, payload: object, says: str) -> None:
    damaged(world, payload)
    for _ in range(2):
        with pytest.raises(
            RetryableError, match=rf"claim default/claim-a \(a\): its record cannot be read, and {says}"
        ):
            world.preparer.unprepare("a")
        assert world.ledger.get("a") is not None
    assert world.hardware == {}, "what is known is undone all the same"
