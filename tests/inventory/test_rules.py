from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_agent.diagnostic import Diagnostic
from dra_agent.errors import UsageError
from dra_agent.inventory.api import Attribute
from dra_agent.inventory.model import Device, Exclusion
from dra_agent.inventory.rules import Rules
from dra_agent.inventory.settings import (
    AttributeRule,
    InventorySettings,
    OverheadRule,
    PrepareAheadRule,
    VersionValue,
)

DRIVER = "dra-agent.internal"
ATTRIBUTES = f'device.attributes["{DRIVER}"]'


def device(name: str, **attributes: bool | int | str) -> Device:
    return Device(name, "nic", "mellanox", "0000:01:00.0", {key: Attribute.of(v) for key, v in attributes.items()})


NICS = [device("nic-a", type="nic", rdma=True, linkSpeed=400000), device("nic-b", type="nic", rdma=False)]


def apply(
    devices: list[Device], rules: InventorySettings
) -> tuple[tuple[Device, ...], list[Diagnostic], list[Exclusion]]:
    problems: list[Diagnostic] = []
    excluded: list[Exclusion] = []
    return Rules(rules, DRIVER).apply(devices, problems, excluded), problems, excluded


def test_include_and_exclude_choose() -> None:
    kept, problems, excluded = apply(NICS, InventorySettings(exclude=(f"!{ATTRIBUTES}.rdma",)))
    assert [one.name for one in kept] == ["nic-a"]
    assert excluded == [Exclusion("nic-b", f"inventory.exclude[0]: !{ATTRIBUTES}.rdma", "rule")]
    assert problems == []
    kept, _, excluded = apply(NICS, InventorySettings(include=("false", f"!{ATTRIBUTES}.rdma")))
    assert [one.name for one in kept] == ["nic-b"]
    assert excluded == [Exclusion("nic-a", "no rule of inventory.include matches", "rule")]


def test_a_rule_without_a_value_for_some_devices_just_does_not_match_them() -> None:
    kept, problems, _ = apply(NICS, InventorySettings(exclude=(f"{ATTRIBUTES}.linkSpeed >= 400000",)))
    assert [one.name for one in kept] == ["nic-b"]
    assert problems == []


def test_a_rule_without_a_value_for_any_device_is_reported() -> None:
    kept, problems, _ = apply(NICS, InventorySettings(exclude=(f"{ATTRIBUTES}.linkspeed >= 1",)))
    assert len(kept) == 2
    (problem,) = problems
    assert problem.where == "inventory.exclude[0]"
    assert "linkspeed" in problem.message
    assert problem.severity == "warning"


def test_rules_select_devices_that_are_prepared_ahead() -> None:
    rules = InventorySettings(
        attributes=(AttributeRule(f"{ATTRIBUTES}.rdma", {"slow": True}),),
        prepare_ahead=(PrepareAheadRule("false"), PrepareAheadRule(f"{ATTRIBUTES}.?slow.orValue(false)")),
    )
    kept, problems, _ = apply(NICS, rules)
    assert [one.prepare_ahead for one in kept] == [True, False] and problems == []
    _, problems, _ = apply(NICS, InventorySettings(prepare_ahead=(PrepareAheadRule(f"{ATTRIBUTES}.linkspeed > 1"),)))
    assert [problem.where for problem in problems] == ["inventory.prepare_ahead[0].when"]
    with pytest.raises(UsageError, match="does not compile"):
        Rules(InventorySettings(prepare_ahead=(PrepareAheadRule("device."),)), DRIVER)


def test_operators_attributes_are_added_and_can_be_chosen_by() -> None:
    rules = InventorySettings(
        attributes=(
            AttributeRule(
                f"{ATTRIBUTES}.rdma",
                {"latency": "sub-microsecond", "rack": 12, "spare": False, "firmware": VersionValue("28.39.1002")},
            ),
            AttributeRule("true", {"site.example/zone": "z1"}),
        ),
        include=(f'{ATTRIBUTES}.?latency.orValue("") == "sub-microsecond"',),
    )
    kept, problems, _ = apply(NICS, rules)
    assert problems == []
    (one,) = kept
    assert one.to_api()["attributes"] == {
        "type": {"string": "nic"},
        "rdma": {"bool": True},
        "linkSpeed": {"int": 400000},
        "latency": {"string": "sub-microsecond"},
        "rack": {"int": 12},
        "spare": {"bool": False},
        "firmware": {"version": "28.39.1002"},
        "site.example/zone": {"string": "z1"},
    }


def test_lists_and_overhead_are_set_by_rules() -> None:
    rules = InventorySettings(
        attributes=(AttributeRule(f"{ATTRIBUTES}.rdma", {"zones": ("a", "b"), "ports": (1, 2)}),),
        overhead=(
            OverheadRule(
                f'"b" in {ATTRIBUTES}.?zones.orValue([])', {"memory": "1Gi"}, {"memory": "64Mi", "cpu": "100m"}
            ),
            OverheadRule("true", {"hugepages-2Mi": "4Mi"}),
        ),
    )
    (one, other), problems, _ = apply(NICS, rules)
    assert problems == []
    assert one.to_api()["attributes"]["zones"] == {"strings": ["a", "b"]}
    assert one.to_api()["attributes"]["ports"] == {"ints": [1, 2]}
    assert one.to_api()["nodeAllocatableResources"] == {
        "cpu": {"overhead": {"perContainer": "100m"}},
        "memory": {"overhead": {"perPod": "1Gi", "perContainer": "64Mi"}},
    }
    assert other.to_api()["nodeAllocatableResources"] == {"hugepages-2Mi": {"overhead": {"perPod": "4Mi"}}}
    assert not one.same_published_form(msgspec.structs.replace(one, overhead={}))


@pytest.mark.parametrize(
    ("rule", "where", "what"),
    [
        (OverheadRule("true"), "overhead[0]", "no amount"),
        (OverheadRule("true", {"ephemeral-storage": "1Gi"}), "overhead[0].per_pod.ephemeral-storage", "not a resource"),
        (OverheadRule("true", {}, {"memory": "much"}), "overhead[0].per_container.memory", "'much'"),
        (OverheadRule("true", {"memory": "-1Gi"}), "overhead[0].per_pod.memory", "negative"),
        (OverheadRule("device.", {"memory": "1Gi"}), "overhead[0].when", "does not compile"),
    ],
)
def test_wrong_overhead_is_refused(rule: OverheadRule, where: str, what: str) -> None:
    with pytest.raises(UsageError, match=re.escape(what)) as raised:
        Rules(InventorySettings(overhead=(rule,)), DRIVER)
    assert raised.value.where == f"configuration, inventory.{where}"


def test_too_many_values_are_reported_and_left_out() -> None:
    rules = InventorySettings(attributes=(AttributeRule("true", {"many": tuple(range(40)), "more": tuple(range(8))}),))
    (one,), problems, _ = apply([device("nic-c", type="nic")], rules)
    assert sorted(one.attributes) == ["many", "type"]
    assert [problem.message for problem in problems] == [
        "more of attributes[0].when is left out: a device has at most 48 values of attributes"
    ]


def test_too_many_attributes_are_reported_and_left_out() -> None:
    full = device("nic-c", **{f"a{number}": number for number in range(31)})
    rules = InventorySettings(attributes=(AttributeRule("true", {"one": 1, "two": 2}),))
    (one,), problems, _ = apply([full], rules)
    assert len(one.attributes) == 32
    assert [problem.message for problem in problems] == [
        "two of attributes[0].when is left out: a device has at most 32 attributes and capacities"
    ]


@pytest.mark.parametrize(
    ("rules", "where", "what"),
    [
        (InventorySettings(include=("true", "device.")), "inventory.include[1]", "'device.' does not compile"),
        (InventorySettings(exclude=("1 + 1",)), "inventory.exclude[0]", "does not compile"),
        (InventorySettings(attributes=(AttributeRule("(", {}),)), "inventory.attributes[0].when", "does not compile"),
        (
            InventorySettings(attributes=(AttributeRule("true", {"uuid": "x"}),)),
            "attributes[0].set.uuid",
            "the agent sets",
        ),
        (
            InventorySettings(attributes=(AttributeRule("true", {f"{DRIVER}/x": 1}),)),
            "attributes[0].set",
            "the agent sets",
        ),
        (InventorySettings(attributes=(AttributeRule("true", {"resource.kubernetes.io/x": 1}),)), "set", "Kubernetes"),
        (InventorySettings(attributes=(AttributeRule("true", {"a-b": 1}),)), "set.a-b", "not a valid attribute name"),
        (
            InventorySettings(attributes=(AttributeRule("true", {"a/b/c": 1}),)),
            "set.a/b/c",
            "not a valid attribute name",
        ),
        (InventorySettings(attributes=(AttributeRule("true", {"s": "x" * 65}),)), "set.s", "65 bytes"),
        (
            InventorySettings(attributes=(AttributeRule("true", {"v": VersionValue("1.2")}),)),
            "set.v",
            "semantic version",
        ),
    ],
)
def test_a_rule_that_can_never_work_is_one_error_that_names_it(rules: InventorySettings, where: str, what: str) -> None:
    with pytest.raises(UsageError) as error:
        Rules(rules, DRIVER)
    assert where in str(error.value)
    assert what in str(error.value)


def test_the_section_is_read_from_toml_and_unknown_keys_are_refused() -> None:
    text = """
exclude = ['device.driver == "x"']
host_uplink = "include"
[[attributes]]
when = "true"
set = { latency = "low", spare = true, rack = 3, rails = ["a", "b"], firmware = { version = "1.2.3" } }
[[overhead]]
when = "true"
per_pod = { memory = "2Gi" }
"""
    found = _toml(text)
    assert found.attributes[0].set == {
        "latency": "low",
        "spare": True,
        "rack": 3,
        "rails": ("a", "b"),
        "firmware": VersionValue("1.2.3"),
    }
    assert found.overhead == (OverheadRule("true", {"memory": "2Gi"}),)
    assert found.host_uplink == "include"
    with pytest.raises(msgspec.ValidationError, match="exclud"):
        _toml("exclud = []")


def _toml(text: str) -> InventorySettings:
    import tomllib

    return msgspec.convert(tomllib.loads(text), InventorySettings)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_any_text_as_a_rule_is_refused_or_applied_and_never_crashes(text: str) -> None:
    try:
        kept, _, _ = apply(NICS, InventorySettings(include=(text,)))
    except UsageError:
        return
    assert {one.name for one in kept} <= {one.name for one in NICS}


def test_a_rule_that_is_not_evaluated_any_more_is_not_reported() -> None:
    rules = Rules(InventorySettings(exclude=(f"{ATTRIBUTES}.rdma", f"{ATTRIBUTES}.misspelled")), DRIVER)
    problems: list[Diagnostic] = []
    rules.apply([device("nic-a", rdma=False)], problems, [])
    assert [problem.where for problem in problems] == ["inventory.exclude[1]"]
    problems.clear()
    rules.apply([device("nic-a", rdma=True)], problems, [])
    assert problems == [], "the first rule excludes it"


def test_a_device_that_stays_the_same_object_is_evaluated_once() -> None:
    rules = Rules(InventorySettings(attributes=(AttributeRule(f"{ATTRIBUTES}.rdma", {"fast": True}),)), DRIVER)
    first = rules.apply(NICS, [], [])
    again = rules.apply(NICS, [], [])
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert first[1] is NICS[1], "no rule changes it"
