"""Queries with one purpose each, for feature gates that are off by default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allocator.cases import DRIVER, NODE, allocated_claim, claim, device, make_exact, make_query, make_request, slice_of

Json = dict[str, Any]

GROUPS = "DRADeviceCompatibilityGroups"
LISTS = "DRAListTypeAttributes"
OPERATIONS = "DRAOptionalNodeOperations"
GATED_CASES: dict[str, Callable[[], Json]] = {}


def case(build: Callable[[], Json]) -> Callable[[], Json]:
    GATED_CASES[build.__name__.replace("_", " ")] = build
    return build


def consumption(counter_set: str, *groups: str) -> Json:
    """Return the use of one slot of a counter set."""
    slots: Json = {"counterSet": counter_set, "counters": {"slots": {"value": "1"}}}
    return {**slots, "compatibilityGroups": list(groups)} if groups else slots


def grouped(name: str, *groups: str, **fields: Any) -> Json:
    """Return a device that uses one slot of the card."""
    return device(name, consumesCounters=[consumption("card", *groups)], **fields)


def counters(*names: str, count: int) -> Json:
    sets = [{"name": name, "counters": {"slots": {"value": "8"}}} for name in names]
    return slice_of(name="z-counters", count=count, sharedCounters=sets)


def card(*devices: Json, held: tuple[str, ...] = (), requests: tuple[Json, ...] = (make_request(),)) -> Json:
    """Return a query for devices of one card, some of which are allocated."""
    slices = [slice_of(*devices, count=2), counters("card", count=2)]
    allocated = [allocated_claim(f"h-{name}", {"device": name}) for name in held]
    return make_query(slices, [claim(*requests)], allocated, gates=[GROUPS])


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
def a_group_is_common_to_all_devices_and_not_to_pairs() -> Json:
    devices = [grouped("a", "x", "y"), grouped("b", "y", "z"), grouped("c", "z", "x"), grouped("d", "y")]
    return card(*devices, requests=(make_request(count=3),))


@case
def a_device_without_groups_is_compatible_with_others_without() -> Json:
    return card(grouped("a"), grouped("b", "x"), grouped("c"), requests=(make_request(count=2),))


@case
def groups_lead_back_to_an_earlier_request() -> Json:
    devices = [grouped("a", "mig"), grouped("b", "vgpu"), grouped("c", "vgpu"), grouped("d", "vgpu")]
    return card(*devices, requests=(make_request("one"), make_request("two", 2)))


@case
def groups_lead_to_another_alternative() -> Json:
    alternatives = [{"name": "two", **make_exact(2)}, {"name": "one", **make_exact()}]
    request = {"name": "main", "firstAvailable": alternatives}
    return card(grouped("a", "mig"), grouped("b", "vgpu"), requests=(request,))


@case
def admin_access_needs_a_common_group_too() -> Json:
    request = make_request(adminAccess=True)
    return card(grouped("a", "vgpu"), grouped("held", "mig"), held=("held",), requests=(request,))


def in_two_slices(first: Json, second: Json) -> Json:
    """Return two devices that are allocated without a common group, in the order of their slices."""
    slices = [
        slice_of(second, name="b-slice", count=4),
        slice_of(first, name="a-slice", count=4),
        slice_of(grouped("with", "mig"), grouped("without"), name="c-slice", count=4),
        counters("card", count=4),
    ]
    held = [allocated_claim("h", {"device": "first"}, {"device": "second"})]
    return make_query(slices, [claim(make_request())], held, gates=[GROUPS])


@case
def of_incompatible_devices_the_first_decides_with_groups() -> Json:
    return in_two_slices(grouped("first", "mig"), grouped("second"))


@case
def of_incompatible_devices_the_first_decides_without_groups() -> Json:
    return in_two_slices(grouped("first"), grouped("second", "mig"))


@case
def devices_of_other_nodes_count_for_groups() -> Json:
    far = slice_of(grouped("far", "mig"), name="far", count=3, nodeName="n2")
    slices = [slice_of(grouped("a", "vgpu"), grouped("b", "mig"), count=3), far, counters("card", count=3)]
    return make_query(slices, [claim(make_request())], [allocated_claim("h", {"device": "far"})], gates=[GROUPS])


@case
def a_device_that_fails_in_its_second_set_leaves_the_first_set_as_it_was() -> Json:
    held = device("held", consumesCounters=[consumption("other", "y")])
    both = device("both", consumesCounters=[consumption("card", "mig"), consumption("other", "x")])
    slices = [slice_of(held, both, grouped("a", "vgpu"), count=2), counters("card", "other", count=2)]
    return make_query(slices, [claim(make_request())], [allocated_claim("h", {"device": "held"})], gates=[GROUPS])


@case
def counters_that_do_not_suffice_leave_the_groups_as_they_were() -> Json:
    large = device("large", consumesCounters=[{**consumption("card", "mig"), "counters": {"slots": {"value": "9"}}}])
    return card(large, grouped("a", "vgpu"))


@case
def only_the_first_share_of_a_device_is_compared() -> Json:
    query = card(grouped("other", "vgpu"), grouped("shared", "mig", allowMultipleAllocations=True), held=("other",))
    share = {"device": "shared", "shareID": "00000000-0000-4000-8000-000000000001"}
    query["allocated"].append(allocated_claim("h-share", share))
    return query


@case
def groups_of_slices_are_ignored_while_only_another_gate_is_on() -> Json:
    return {**card(grouped("a", "mig"), grouped("b")), "gates": [LISTS]}


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
