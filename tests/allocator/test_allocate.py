"""`Cluster.allocate`: its arguments, its side effects, and its deadline."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from allocator.cases import DRIVER, claim, device, make_query, make_request, memory, shared, slice_of
from allocator.question import allocate
from dra_agent.errors import PermanentError
from eventually import DEADLINE_S

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def test_allocation_has_the_api_form_and_keeps_its_arguments() -> None:
    query = make_query([slice_of(device("a"))], [claim(make_request())])
    before = copy.deepcopy(query)
    result = allocate(**query)
    assert query == before
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert result == {
        "allocated": True,
        "results": [
            {
                "devices": {"results": [{"request": "main", "driver": DRIVER, "pool": "p", "device": "a"}]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
            }
        ],
        "error": None,
        "fatal": False,
    }


def test_allocation_counts_in_the_next_query() -> None:
    query = make_query([slice_of(device("a"), device("b"))], [claim(make_request(), name="first")])
    result = allocate(**query)["results"][0]
    query["allocated"] = [{**query["claims"][0], "status": {"allocation": result}}]
    query["claims"] = [claim(make_request(), name="second")]
    (second,) = allocate(**query)["results"]
    assert second["devices"]["results"][0]["device"] == "b"


def test_share_ids_are_distinct_uuids_and_reproducible() -> None:
    requests = [make_request("r0", capacity=memory("1Gi")), make_request("r1", capacity=memory("1Gi"))]
    query = make_query([slice_of(shared())], [claim(*requests)])

    def ids(seed: int | None) -> list[str]:
        results = allocate(**query, share_id_seed=seed)["results"][0]["devices"]["results"]
        return [result["shareID"] for result in results]

    generated = [*ids(None), *ids(None), *ids(1)]
    assert len(set(generated)) == 6
    assert all(UUID4.fullmatch(entry) for entry in generated)
    assert ids(1) == generated[4:]
    assert ids(-1) == ids((1 << 64) - 1) != ids(1)


def test_a_search_beyond_the_deadline_is_an_error() -> None:
    """The addition table of an even order has no transversal (Euler), and counting alone does not prove it."""
    order = 18
    devices = [
        device(f"d{row}-{column}", {"row": row, "column": column, "sum": (row + column) % order})
        for row in range(order)
        for column in range(order)
    ]
    slices = [slice_of(*devices[i : i + 128], name=f"s{i}", pool=f"p{i}") for i in range(0, len(devices), 128)]
    constraints = [{"distinctAttribute": f"{DRIVER}/{name}"} for name in ("row", "column", "sum")]
    query = make_query(slices, [claim(make_request("all", order), constraints=constraints)])
    result = allocate(**query, deadline=0.2)
    assert result["error"] is not None
    assert "no result within 200 ms" in result["error"]


@pytest.mark.parametrize("mode", ["ExactCount", "All"])
def test_the_deadline_bounds_selector_evaluation(mode: str) -> None:
    endless = "x40 == x40"
    for level in range(40, 0, -1):
        endless = f"cel.bind(x{level}, [x{level - 1}, x{level - 1}], {endless})"
    request = make_request(expression=f"cel.bind(x0, [1, 1], {endless})", allocationMode=mode)
    if mode == "All":
        del request["exactly"]["count"]
    devices = [device(f"d{i}") for i in range(60)]
    result = allocate(**make_query([slice_of(*devices)], [claim(request)]), deadline=0.2)
    assert "no result within 200 ms" in str(result["error"])


def test_a_very_long_list_of_claims_is_allocated() -> None:
    devices = [device(f"d{i}") for i in range(128)]
    slices = [slice_of(*devices, name=f"s{i}", pool=f"p{i}") for i in range(63)]
    claims = [claim(make_request(count=32), name=f"c{i}") for i in range(250)]
    result = allocate(**make_query(slices, claims), deadline=DEADLINE_S)
    assert result["allocated"]
    assert sum(len(one["devices"]["results"]) for one in result["results"]) == 8000


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"claims": [{"spec": {"devices": {"requests": "many"}}}]}, "spec.devices.requests"),
        ({"slices": [{"metadata": {"name": "s"}, "spec": {"driver": []}}]}, "ResourceSlice s: spec.driver"),
    ],
)
def test_an_invalid_api_object_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(PermanentError, match=re.escape(message)):
        allocate(**{**make_query([], []), **wrong})


def test_an_error_names_claim_and_request() -> None:
    result = allocate(**make_query([slice_of(device("a"))], [claim(make_request(deviceClassName="absent"))]))
    assert result["error"] == 'claim default/claim, request main: the device class "absent" does not exist'
