"""Queries with one purpose each, for feature gates that are off by default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allocator.cases import DRIVER, NODE, claim, device, make_query, make_request, slice_of

Json = dict[str, Any]

LISTS = "DRAListTypeAttributes"
OPERATIONS = "DRAOptionalNodeOperations"
GATED_CASES: dict[str, Callable[[], Json]] = {}


def case(build: Callable[[], Json]) -> Callable[[], Json]:
    GATED_CASES[build.__name__.replace("_", " ")] = build
    return build


def rails(name: str, *values: str) -> Json:
    """Return a device with a list."""
    return {"name": name, "attributes": {"rails": {"strings": list(values)}}}


def on_rails(*devices: Json, count: int = 2, kind: str = "matchAttribute") -> Json:
    """Return a query for devices whose lists are compared."""
    constraints = [{kind: f"{DRIVER}/rails"}]
    return make_query([slice_of(*devices)], [claim(make_request(count=count), constraints=constraints)], gates=[LISTS])


def reserved(*devices: Json, name: str = "slice-0", **spec: Any) -> Json:
    """Return a slice whose node operations are skipped."""
    return slice_of(*devices, name=name, skipNodeOperations=["*"], **spec)


def declaring() -> Json:
    """Return the Node whose kubelet can skip operations."""
    return {"metadata": {"name": NODE}, "status": {"declaredFeatures": [OPERATIONS]}}


@case
def a_list_leads_back_to_the_values_before() -> Json:
    return on_rails(rails("a", "1", "2"), rails("b", "1"), rails("c", "2"), rails("d", "2"), count=3)


@case
def a_single_value_is_compared_as_a_list_of_one() -> Json:
    single: Json = {"name": "b", "attributes": {"rails": {"string": "2"}}}
    return on_rails(rails("a", "1", "2"), single, rails("c", "1"))


@case
def values_of_different_types_have_nothing_in_common() -> Json:
    versions: Json = {"name": "b", "attributes": {"rails": {"versions": ["1.0.0"]}}}
    return on_rails(rails("a", "1.0.0"), versions, rails("c", "1.0.0", "2"))


@case
def distinct_lists_have_no_value_in_common() -> Json:
    return on_rails(rails("a", "1", "2"), rails("b", "2", "3"), rails("c", "3"), kind="distinctAttribute")


@case
def all_devices_whose_lists_differ_are_an_error() -> Json:
    query = on_rails(rails("a", "1"), rails("b", "2"))
    query["claims"][0]["spec"]["devices"]["requests"] = [make_request(allocationMode="All")]
    return query


@case
def skipped_operations_are_copied() -> Json:
    query = make_query([reserved(device("a"))], [claim(make_request())], gates=[OPERATIONS])
    return {**query, "node": declaring()}


@case
def skipped_operations_need_a_node_that_declares_them() -> Json:
    slices = [reserved(device("a"), count=2), slice_of(device("b"), name="slice-1", count=2)]
    return make_query(slices, [claim(make_request())], gates=[OPERATIONS])


@case
def skipped_operations_need_their_gate_while_another_one_is_on() -> Json:
    query = make_query([reserved(device("a"))], [claim(make_request())], gates=[LISTS])
    return {**query, "node": declaring()}


@case
def all_devices_do_not_fit_if_operations_of_one_cannot_be_skipped() -> Json:
    slices = [slice_of(device("b"), count=2), reserved(device("a"), name="slice-1", count=2)]
    return make_query(slices, [claim(make_request(allocationMode="All"))], gates=[OPERATIONS])
