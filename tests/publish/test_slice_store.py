"""The store of published slices is independent of the order in which responses, lists and events arrive."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dra_agent.kube_client import ObjectList, WatchEvent
from dra_agent.publish.slice_store import SliceStore


def slice_object(name: str, version: int, *, uid: str = "", pool: str = "p") -> dict[str, Any]:
    metadata = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"pool": {"name": pool}, "version": version}}


def versions(store: SliceStore) -> dict[str, int]:
    return {slice_["metadata"]["name"]: slice_["spec"]["version"] for slice_ in store.slices("p")}


def object_list(version: int, *slices: dict[str, Any]) -> ObjectList:
    return ObjectList(list(slices), str(version))


def test_a_write_counts_before_its_watch_event() -> None:
    store = SliceStore()
    store.listed(object_list(10))
    store.wrote(slice_object("a", 11))
    assert versions(store) == {"a": 11}
    assert store.changed(WatchEvent("ADDED", slice_object("a", 11))) == set(), "not a change"
    store.wrote(slice_object("a", 13))
    assert store.changed(WatchEvent("MODIFIED", slice_object("a", 12))) == set(), "older than the known version"
    assert versions(store) == {"a": 13}
    assert store.changed(WatchEvent("MODIFIED", slice_object("a", 14))) == {("p", "a")}


def test_a_list_older_than_a_write_does_not_undo_it() -> None:
    store = SliceStore()
    store.listed(object_list(10, slice_object("old", 5)))
    store.wrote(slice_object("a", 12))
    store.deleted(slice_object("old", 5))
    assert store.listed(object_list(11, slice_object("old", 5))) == set()
    assert versions(store) == {"a": 12}
    assert store.listed(object_list(13)) == {("p", "a")}, "a later list does"
    assert versions(store) == {}


def test_a_response_after_the_deletion_is_ignored() -> None:
    by_watch, by_list = SliceStore(), SliceStore()
    for store in (by_watch, by_list):
        store.listed(object_list(10))
    by_watch.changed(WatchEvent("ADDED", slice_object("a", 11)))
    by_watch.changed(WatchEvent("DELETED", slice_object("a", 12)))
    by_list.listed(object_list(12))
    for store in (by_watch, by_list):
        store.wrote(slice_object("a", 11))
        assert versions(store) == {}, "no later event reports the deletion"


def test_every_change_of_the_slices_is_reported() -> None:
    changes: list[int] = []
    store = SliceStore(lambda: changes.append(len(store)))
    store.listed(object_list(10, slice_object("a", 9), slice_object("b", 8)))
    store.listed(object_list(11, slice_object("a", 9)))
    assert changes == [1, 2, 1]
    store.changed(WatchEvent("MODIFIED", slice_object("a", 12)))
    store.changed(WatchEvent("MODIFIED", slice_object("a", 12)))
    store.deleted(slice_object("a", 12))
    assert changes == [1, 2, 1, 1, 0]


def test_managed_fields_are_not_kept() -> None:
    """They can be larger than the slice."""
    listed = slice_object("a", 9)
    listed["metadata"] |= {"managedFields": [{"manager": "m"}], "labels": {"l": "v"}}
    store = SliceStore()
    store.listed(object_list(10, listed))
    (kept,) = store.slices("p")
    assert kept == {**slice_object("a", 9), "metadata": {**slice_object("a", 9)["metadata"], "labels": {"l": "v"}}}


def test_the_deletion_of_another_slice_of_that_name_is_ignored() -> None:
    store = SliceStore()
    store.listed(object_list(10, slice_object("a", 9, uid="new")))
    assert store.changed(WatchEvent("DELETED", slice_object("a", 8, uid="old"))) == set()
    assert versions(store) == {"a": 9}


def test_a_slice_that_moves_to_another_pool_affects_both() -> None:
    store = SliceStore()
    store.listed(object_list(10, slice_object("a", 9)))
    assert store.changed(WatchEvent("MODIFIED", slice_object("a", 11, pool="q"))) == {("p", "a"), ("q", "a")}
    assert store.pools() == {"q"}


def test_versions_that_are_not_numbers_are_accepted_in_order() -> None:
    store = SliceStore()
    store.listed(ObjectList([slice_object("a", 1)], "opaque"))
    opaque = slice_object("a", 1)
    opaque["metadata"]["resourceVersion"] = "x1"
    assert store.changed(WatchEvent("MODIFIED", opaque)) == {("p", opaque["metadata"]["name"])}


@given(st.data())
def test_the_order_of_arrival_does_not_matter(data: st.DataObject) -> None:
    """The events of a slice arrive in order, the responses at any time."""
    history: list[tuple[str, dict[str, Any], bool]] = []
    incarnation, alive, version = 0, False, 10
    for _ in range(data.draw(st.integers(1, 12))):
        version += 1
        written_here = data.draw(st.booleans())
        if not alive:
            incarnation, alive = incarnation + 1, True
            history.append(("ADDED", slice_object(f"a{incarnation}", version), written_here))
        elif data.draw(st.booleans()):
            history.append(("MODIFIED", slice_object(f"a{incarnation}", version), written_here))
        else:
            alive = False
            history.append(("DELETED", slice_object(f"a{incarnation}", version), written_here))
    store = SliceStore()
    store.listed(object_list(10))
    delivered = answered = 0
    answers = [(type_, slice_) for type_, slice_, written_here in history if written_here]
    while delivered < len(history) or answered < len(answers):
        remaining = [delivered < len(history), answered < len(answers)]
        if data.draw(st.sampled_from([source for source in (0, 1) if remaining[source]])) == 0:
            type_, slice_, _ = history[delivered]
            delivered += 1
            store.changed(WatchEvent(type_, slice_))
        else:
            type_, slice_ = answers[answered]
            answered += 1
            if type_ == "DELETED":
                store.deleted(slice_)
            else:
                store.wrote(slice_)
    last = history[-1][1]
    assert versions(store) == ({last["metadata"]["name"]: last["spec"]["version"]} if alive else {})


def test_a_stored_slice_takes_less_than_twice_its_encoded_size() -> None:
    attributes = {f"name{number}": {"string": f"value {number}"} for number in range(20)}
    counters = {f"memory-slice-{number}": {"value": "1"} for number in range(8)}
    consumed = [{"counterSet": "gpu", "counters": counters}]
    devices = [{"name": f"d-{number}", "attributes": attributes, "consumesCounters": consumed} for number in range(64)]
    expected = slice_object("a", 2)
    expected["spec"]["devices"] = devices
    encoded = msgspec.json.encode(expected)
    store = SliceStore()
    tracemalloc.start()
    try:
        store.listed(object_list(2, msgspec.json.decode(encoded)))
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 2 * len(encoded), f"{size} bytes are allocated for {len(encoded)} encoded bytes"
    assert store.slices("p") == [expected]
