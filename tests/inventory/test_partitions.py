from __future__ import annotations

import pytest

from dra_agent.errors import UsageError
from dra_agent.inventory.api import Attribute, Counter, CounterConsumption, CounterSet
from dra_agent.inventory.model import Device, device_name
from dra_agent.inventory.rules import PartitionRules, used_counter_sets
from dra_agent.inventory.settings import PartitionRule

DRIVER = "dra-agent.internal"
ADDRESS = "0000:01:00.0"
VENDOR = f'device.attributes["{DRIVER}"].vendor'


def gpu(name: str, vendor: str, *consumes: str) -> Device:
    counters = {"slices": Counter("1")}
    return Device(
        name,
        "gpu",
        vendor,
        ADDRESS,
        {"vendor": Attribute.of(vendor)},
        consumes_counters=tuple(CounterConsumption(one, counters) for one in consumes),
    )


def test_the_first_rule_of_a_mode_that_matches_counts() -> None:
    rules = PartitionRules(
        [
            PartitionRule(f'{VENDOR} == "amd"', "amd"),
            PartitionRule(f'{VENDOR} == "nvidia"', "mig", "destroy"),
            PartitionRule("true", "mig"),
        ],
        DRIVER,
    )
    chosen = rules.rule_for(gpu("gpu-a", "nvidia"), "mig")
    assert chosen is not None and chosen.foreign == "destroy"
    assert rules.rule_for(gpu("gpu-a", "nvidia"), "amd") is None
    assert rules.rule_for(gpu("gpu-b", "amd"), "sriov") is None
    assert rules.problems([ADDRESS]) == []


def test_a_misspelled_rule_is_reported_and_a_broken_one_refused() -> None:
    rules = PartitionRules([PartitionRule(f'device.attributes["{DRIVER}"].vndor == "amd"', "amd")], DRIVER)
    assert rules.rule_for(gpu(device_name("gpu", ADDRESS), "amd"), "amd") is None
    (problem,) = rules.problems([ADDRESS])
    assert rules.problems([]) == [], "a GPU that was removed does not count"
    assert rules.rule_for(gpu(device_name("gpu", ADDRESS), "amd"), "amd") is None
    rules.begin([ADDRESS])
    assert rules.problems([ADDRESS]) == [], "it was not evaluated again"
    assert problem.where == "inventory.partition[0].when"
    with pytest.raises(UsageError, match=r"inventory.partition\[0\].when"):
        PartitionRules([PartitionRule("device.", "amd")], DRIVER)


def test_counter_sets_without_consumers_are_not_published() -> None:
    sets = [CounterSet(name, {"slices": Counter("8")}) for name in ("one", "two")]
    assert used_counter_sets([gpu("gpu-a", "amd", "two"), gpu("gpu-b", "amd")], sets) == (sets[1],)
