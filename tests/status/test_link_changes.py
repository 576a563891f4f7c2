"""Events about the links between GPUs."""

from __future__ import annotations

import msgspec

from dra_agent.inventory.api import Attribute
from dra_agent.inventory.model import Device
from dra_agent.status.link_changes import LinkChanges


def gpu(number: int, group: int | None, width: int | None = 18, kind: str = "gpu") -> Device:
    values: dict[str, int | str | None] = {
        "type": kind,
        "interconnectGroup": None if group is None else f"0000:{group:02x}:00.0",
        "interconnectWidth": None if group is None else width,
    }
    attributes = {name: Attribute.of(value) for name, value in values.items() if value is not None}
    return Device(f"gpu-{number}", "gpu", "nvidia", f"0000:{number:02x}:00.0", attributes)


def group(*numbers: int, width: int | None = 18) -> list[Device]:
    return [gpu(number, numbers[0], width) for number in numbers]


def reasons(before: list[Device], after: list[Device]) -> dict[str, str]:
    changes = LinkChanges()
    assert changes.changed(before) == []
    return {reason.name: note for reason, note in changes.changed(after)}


def test_nothing_is_reported_at_the_start_and_without_a_change() -> None:
    assert reasons(group(0, 1, 2), group(0, 1, 2)) == {}
    assert reasons([], group(0, 1, 2)) == {}


def test_a_link_that_fails_and_returns() -> None:
    assert reasons(group(0, 1), group(0, 1, width=17)) == {
        "LinksDegraded": "GPUs have fewer links to each other: "
        "gpu-0 (1 linked, 18 links each before, 1 linked, 17 links each now); "
        "gpu-1 (1 linked, 18 links each before, 1 linked, 17 links each now)"
    }
    assert reasons(group(0, 1, width=17), group(0, 1)).keys() == {"LinksRestored"}


def test_a_gpu_that_leaves_its_group() -> None:
    found = reasons(group(0, 1, 2), [gpu(0, None), *group(1, 2)])
    assert found.keys() == {"LinksDegraded"}
    assert "gpu-0 (2 linked, 18 links each before, no linked GPU now)" in found["LinksDegraded"]
    back = reasons([gpu(0, None), *group(1, 2)], group(0, 1, 2))
    assert back.keys() == {"LinksRestored"}


def test_a_group_that_is_split_is_named_and_one_that_is_renamed_is_not() -> None:
    assert reasons(group(0, 1, 2, 3), [*group(0, 1), *group(2, 3)]).keys() == {"LinksDegraded"}
    assert reasons([gpu(1, 0), gpu(2, 0)], [gpu(1, 1), gpu(2, 1)]) == {}


def test_a_width_that_is_not_known_is_not_compared() -> None:
    """KFD shows none while one GPU of the group is divided."""
    assert reasons(group(0, 1), group(0, 1, width=None)) == {}
    assert reasons(group(0, 1, width=None), group(0, 1)) == {}


def test_a_gpu_that_is_unplugged_or_bound_to_vfio_is_not_a_fault_of_a_link() -> None:
    assert reasons(group(0, 1, 2), group(1, 2)) == {}
    assert reasons(group(0, 1, 2), [gpu(0, None, kind="vfio"), *group(1, 2)]) == {}


def test_a_gpu_that_cannot_be_read_yet_has_no_more_links_once_it_can() -> None:
    starting = [msgspec.structs.replace(gpu(number, None), observed=False) for number in range(2)]
    assert reasons(starting, group(0, 1)) == {}
    hung = [msgspec.structs.replace(gpu(number, None), health="unmonitored") for number in range(2)]
    assert reasons(hung, group(0, 1)) == {} == reasons(group(0, 1), hung)


def test_links_that_fail_while_a_gpu_cannot_be_read_are_reported_once_it_can() -> None:
    def split(*numbers: int) -> list[Device]:
        return [gpu(number, None) for number in numbers]

    hung = msgspec.structs.replace(gpu(0, None), health="unmonitored")
    for between in ([hung, *group(1, 2)], [gpu(0, None, kind="vfio"), *group(1, 2)], [hung, *split(1, 2)]):
        changes = LinkChanges()
        assert changes.changed(group(0, 1, 2)) == []
        changes.changed(between)
        found = {reason.name: note for reason, note in changes.changed([*split(0), *group(1, 2)])}
        assert "gpu-0 (2 linked, 18 links each before, no linked GPU now)" in found.pop("LinksDegraded")
        assert found.keys() <= {"LinksRestored"}
        assert changes.changed([*split(0), *group(1, 2)]) == [], "it is reported once"


def test_links_that_return_with_a_gpu_that_could_not_be_read_are_not_reported() -> None:
    changes = LinkChanges()
    changes.changed(group(0, 1))
    assert changes.changed([msgspec.structs.replace(gpu(0, None), observed=False), gpu(1, None)]) == []
    assert changes.changed(group(0, 1)) == []


def test_a_width_is_compared_with_the_last_that_was_known() -> None:
    changes = LinkChanges()
    assert [changes.changed(group(0, 1, width=width)) for width in (18, None)] == [[], []]
    assert [reason.name for reason, _ in changes.changed(group(0, 1, width=17))] == ["LinksDegraded"]


def test_a_gpu_that_replaces_another_is_not_compared_with_it() -> None:
    changes = LinkChanges()
    changes.changed(group(0, 1))
    assert changes.changed([gpu(1, None)]) == []
    assert changes.changed([gpu(0, None), gpu(1, None)]) == []


def test_a_note_about_many_gpus_is_short() -> None:
    found = reasons(group(*range(16)), group(*range(16), width=5))
    assert found["LinksDegraded"].endswith("; ...") and len(found["LinksDegraded"]) < 1024
