"""The function itself: its arguments, what it does not change, and how it ends."""

from __future__ import annotations

import copy
import re
import time

import pytest

from allocator.cases import DRIVER, ask, claim, device, memory, question, shared, slice_of
from dra_agent.allocator import allocate
from eventually import DEADLINE_S

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def test_an_allocation_has_the_api_s_form_and_changes_no_argument() -> None:
    asked = question([slice_of(device("a"))], [claim(ask())])
    before = copy.deepcopy(asked)
    answer = allocate(**asked)
    assert asked == before
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert answer == {
        "allocated": True,
        "results": [
            {
                "devices": {"results": [{"request": "main", "driver": DRIVER, "pool": "p", "device": "a"}]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
            }
        ],
        "error": None,
    }


def test_an_allocation_can_be_asked_about_in_the_next_question() -> None:
    asked = question([slice_of(device("a"), device("b"))], [claim(ask(), name="first")])
    result = allocate(**asked)["results"][0]
    asked["allocated"] = [{**asked["claims"][0], "status": {"allocation": result}}]
    asked["claims"] = [claim(ask(), name="second")]
    (second,) = allocate(**asked)["results"]
    assert second["devices"]["results"][0]["device"] == "b"


def test_share_ids_are_uuids_that_differ_and_can_be_repeated() -> None:
    requests = [ask("r0", capacity=memory("1Gi")), ask("r1", capacity=memory("1Gi"))]
    asked = question([slice_of(shared())], [claim(*requests)])

    def ids(seed: int | None) -> list[str]:
        results = allocate(**asked, share_id_seed=seed)["results"][0]["devices"]["results"]
        return [result["shareID"] for result in results]

    drawn = [*ids(None), *ids(None), *ids(1)]
    assert len(set(drawn)) == 6
    assert all(UUID4.fullmatch(entry) for entry in drawn)
    assert ids(1) == drawn[4:]


def test_a_search_that_takes_too_long_ends_with_an_error() -> None:
    """The addition table of an even order has no transversal (Euler), and counting alone does not show it."""
    order = 18
    devices = [
        device(f"d{row}-{column}", {"row": row, "column": column, "sum": (row + column) % order})
        for row in range(order)
        for column in range(order)
    ]
    slices = [slice_of(*devices[i : i + 128], name=f"s{i}", pool=f"p{i}") for i in range(0, len(devices), 128)]
    constraints = [{"distinctAttribute": f"{DRIVER}/{name}"} for name in ("row", "column", "sum")]
    asked = question(slices, [claim(ask("all", order), constraints=constraints)])
    start = time.monotonic()
    answer = allocate(**asked, deadline=0.2)
    assert time.monotonic() - start < 50
    assert answer["error"] is not None
    assert "no result within 200 ms" in answer["error"]


@pytest.mark.parametrize("mode", ["ExactCount", "All"])
def test_the_deadline_bounds_the_selectors(mode: str) -> None:
    endless = "x40 == x40"
    for level in range(40, 0, -1):
        endless = f"cel.bind(x{level}, [x{level - 1}, x{level - 1}], {endless})"
    request = ask(expression=f"cel.bind(x0, [1, 1], {endless})", allocationMode=mode)
    if mode == "All":
        del request["exactly"]["count"]
    devices = [device(f"d{i}") for i in range(60)]
    answer = allocate(**question([slice_of(*devices)], [claim(request)]), deadline=0.2)
    assert "no result within 200 ms" in str(answer["error"])


def test_a_very_long_list_of_claims_is_answered() -> None:
    devices = [device(f"d{i}") for i in range(128)]
    slices = [slice_of(*devices, name=f"s{i}", pool=f"p{i}") for i in range(63)]
    claims = [claim(ask(count=32), name=f"c{i}") for i in range(250)]
    answer = allocate(**question(slices, claims), deadline=DEADLINE_S)
    assert answer["allocated"]
    assert sum(len(result["devices"]["results"]) for result in answer["results"]) == 8000


@pytest.mark.parametrize(
    "wrong",
    [{"claims": [{"spec": {"devices": {"requests": "many"}}}]}, {"node": 7}, {"slices": [{"spec": {"driver": []}}]}],
)
def test_what_is_not_an_object_of_the_api_is_an_error_of_the_answer(wrong: dict[str, object]) -> None:
    answer = allocate(**{**question([], []), **wrong})
    assert answer["allocated"] is False
    assert answer["results"] == []
    assert "cannot be read" in str(answer["error"])


def test_an_error_names_claim_and_request() -> None:
    answer = allocate(**question([slice_of(device("a"))], [claim(ask(deviceClassName="absent"))]))
    assert answer["error"] == 'claim default/claim, request main: the device class "absent" does not exist'
