"""What is known to be published, whatever the order in which answers, lists and events arrive."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dra_agent.kube_client import ObjectList, WatchEvent
from dra_agent.publish.slice_store import SliceStore


def entry(name: str, version: int, *, uid: str = "", pool: str = "p") -> dict[str, Any]:
    metadata = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"pool": {"name": pool}, "version": version}}


def versions(published: SliceStore) -> dict[str, int]:
    return {found["metadata"]["name"]: found["spec"]["version"] for found in published.slices("p")}


def listed(version: int, *found: dict[str, Any]) -> ObjectList:
    return ObjectList(list(found), str(version))


def test_an_own_write_counts_before_the_watch_tells_of_it() -> None:
    published = SliceStore()
    published.listed(listed(10))
    published.wrote(entry("a", 11))
    assert versions(published) == {"a": 11}
    assert published.changed(WatchEvent("ADDED", entry("a", 11))) == set(), "no news"
    published.wrote(entry("a", 13))
    assert published.changed(WatchEvent("MODIFIED", entry("a", 12))) == set(), "older than what is known"
    assert versions(published) == {"a": 13}
    assert published.changed(WatchEvent("MODIFIED", entry("a", 14))) == {("p", "a")}


def test_a_list_that_was_taken_before_a_write_does_not_undo_it() -> None:
    published = SliceStore()
    published.listed(listed(10, entry("old", 5)))
    published.wrote(entry("a", 12))
    published.deleted(entry("old", 5))
    assert published.listed(listed(11, entry("old", 5))) == set()
    assert versions(published) == {"a": 12}
    assert published.listed(listed(13)) == {("p", "a")}, "and one that was taken after it does"
    assert versions(published) == {}


def test_an_answer_that_comes_after_the_news_of_its_deletion_is_no_news() -> None:
    by_watch, by_list = SliceStore(), SliceStore()
    for published in (by_watch, by_list):
        published.listed(listed(10))
    by_watch.changed(WatchEvent("ADDED", entry("a", 11)))
    by_watch.changed(WatchEvent("DELETED", entry("a", 12)))
    by_list.listed(listed(12))
    for published in (by_watch, by_list):
        published.wrote(entry("a", 11))
        assert versions(published) == {}, "nobody would ever tell again that it is gone"


def test_the_deletion_of_a_namesake_is_not_its_own() -> None:
    published = SliceStore()
    published.listed(listed(10, entry("a", 9, uid="new")))
    assert published.changed(WatchEvent("DELETED", entry("a", 8, uid="old"))) == set()
    assert versions(published) == {"a": 9}


def test_a_slice_that_changes_its_pool_concerns_both() -> None:
    published = SliceStore()
    published.listed(listed(10, entry("a", 9)))
    assert published.changed(WatchEvent("MODIFIED", entry("a", 11, pool="q"))) == {("p", "a"), ("q", "a")}
    assert published.pools() == {"q"}


def test_versions_that_are_no_numbers_are_taken_as_they_come() -> None:
    published = SliceStore()
    published.listed(ObjectList([entry("a", 1)], "opaque"))
    odd = entry("a", 1)
    odd["metadata"]["resourceVersion"] = "x1"
    assert published.changed(WatchEvent("MODIFIED", odd)) == {("p", odd["metadata"]["name"])}


@given(st.data())
def test_the_order_of_arrival_does_not_matter(data: st.DataObject) -> None:
    """A history of one slice's creations, changes and deletions arrives by watch in order, by answers at any time."""
    history: list[tuple[str, dict[str, Any], bool]] = []
    life, alive, version = 0, False, 10
    for _ in range(data.draw(st.integers(1, 12))):
        version += 1
        ours = data.draw(st.booleans())
        if not alive:
            life, alive = life + 1, True
            history.append(("ADDED", entry(f"a{life}", version), ours))
        elif data.draw(st.booleans()):
            history.append(("MODIFIED", entry(f"a{life}", version), ours))
        else:
            alive = False
            history.append(("DELETED", entry(f"a{life}", version), ours))
    published = SliceStore()
    published.listed(listed(10))
    told = answered = 0
    answers = [(type_, found) for type_, found, ours in history if ours]
    while told < len(history) or answered < len(answers):
        more = [told < len(history), answered < len(answers)]
        if data.draw(st.sampled_from([choice for choice in (0, 1) if more[choice]])) == 0:
            type_, found, _ = history[told]
            told += 1
            published.changed(WatchEvent(type_, found))
        else:
            type_, found = answers[answered]
            answered += 1
            if type_ == "DELETED":
                published.deleted(found)
            else:
                published.wrote(found)
    last = history[-1][1]
    assert versions(published) == ({last["metadata"]["name"]: last["spec"]["version"]} if alive else {})


def test_what_is_published_of_many_devices_is_kept_as_compactly_as_it_is_sent() -> None:
    attributes = {f"name{number}": {"string": f"value {number}"} for number in range(20)}
    counters = {f"memory-slice-{number}": {"value": "1"} for number in range(8)}
    consumed = [{"counterSet": "gpu", "counters": counters}]
    devices = [{"name": f"d-{n}", "attributes": attributes, "consumesCounters": consumed} for n in range(64)]
    whole = entry("a", 2)
    whole["spec"]["devices"] = devices
    sent = msgspec.json.encode(whole)
    published = SliceStore()
    tracemalloc.start()
    try:
        published.listed(listed(2, msgspec.json.decode(sent)))
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 * len(sent), f"{kept} bytes are kept of {len(sent)} that were sent"
    assert published.slices("p") == [whole]
