"""The text of /metrics as `dra-agent top` reads it: an agent's own, and text that no agent writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_agent.telemetry.exposition import MAX_LABEL_CHARS, MAX_ROWS, parse
from dra_simulate import inject
from telemetry.rig import Rig, claim, held

GPU = "gpu-0000-00-04-0"
LABELS = 'device="gpu-a",family="gpu",pool="n/gpu",product="P"'


def test_the_values_of_an_agent_are_those_that_it_sampled(rig: Rig, root: Path) -> None:
    rig.entries = [claim("train", held(GPU))]
    inject.load(root, "0", utilization=(40, 5), power_milliwatts=55_000, temperature=61, energy_millijoules=0)
    rig.sample()
    inject.load(root, "0", utilization=(0, 0), power_milliwatts=50_000, energy_millijoules=7_000_000)
    rig.sample()
    inject.load(root, "0", clock_event_reasons=0x20)
    rig.sample()
    found = parse(rig.exposition())
    assert (found.is_on, found.names_claims, found.problems) == (True, True, ())
    device = next(one for one in found.devices if one.device == GPU)
    sampled = rig.sampler.snapshot()
    assert device.values == sampled.samples[GPU]
    assert (device.family, device.pool, device.product) == ("gpu", "node-1/gpu", "Tesla T4")
    (train,) = found.claims
    assert (train.namespace, train.name, train.device) == ("team-a", "train", GPU)
    assert (train.idle_seconds, train.values.energy_joules) == (10, 7000)
    assert train.values.throttle_reasons == ("thermal",)


def test_what_an_agent_shows_is_known_without_any_value(rig: Rig) -> None:
    assert parse(rig.exposition()).is_on and parse(rig.exposition()).names_claims
    rig.claim_labels = False
    assert not parse(rig.exposition()).names_claims
    assert not parse("# TYPE dra_agent_registered gauge\ndra_agent_registered 1.0\n").is_on


def test_series_of_other_versions_are_ignored() -> None:
    text = (
        f'dra_agent_device_new_value{{{LABELS},more="1"}} 3.0\ndra_agent_device_power_watts{{{LABELS},more="1"}} 3.0\n'
    )
    (device,) = parse(text).devices
    assert device.values.power_watts == 3


def test_escaped_labels_are_the_original_ones() -> None:
    text = 'dra_agent_device_power_watts{device="a\\"} 1",family="gpu",pool="n/gpu",product="a\\\\n\\n\x1b[2J"} 2.0\n'
    (device,) = parse(text).devices
    assert (device.device, device.product, device.values.power_watts) == ('a"} 1', "a\\n\n\x1b[2J", 2)


def test_values_that_cannot_be_true_are_absent_and_named() -> None:
    text = "".join(
        f"dra_agent_device_{name}{{{LABELS}}} {value}\n"
        for name, value in (
            ("gpu_utilization_ratio", "7"),
            ("power_watts", "NaN"),
            ("temperature_celsius", "61"),
            ("memory_used_bytes", "+Inf"),
            ("energy_joules_total", "-1"),
        )
    )
    found = parse(text + 'dra_agent_claim_idle_seconds_total{claim="c",device="d",namespace="n"} -1\n')
    (device,) = found.devices
    assert device.values.temperature_celsius == 61
    assert device.values.gpu_utilization_ratio is device.values.power_watts is device.values.memory_used_bytes is None
    assert device.values.energy_joules is None and found.claims[0].idle_seconds is None
    assert len(found.problems) == 4 and all(problem.startswith("gpu-a: ") for problem in found.problems)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("dra_agent_device_power_watts 1.0", "not in the text format"),
        ('dra_agent_device_power_watts{device="a"} 1.0', "has no label pool"),
        (f"dra_agent_device_power_watts{{{LABELS}}} 1_0", "not in the text format"),
        (f"dra_agent_device_power_watts{{{LABELS}}} 1.0.0", "could not convert"),
        (f"dra_agent_device_power_watts{{{LABELS}}} 1.0 1700000000", "not in the text format"),
        (f'dra_agent_device_power_watts{{{LABELS},x="\\q"}} 1.0', "not in the text format"),
        (f'dra_agent_device_power_watts{{{LABELS},x="{"a" * (MAX_LABEL_CHARS + 1)}"}} 1.0', "more than 512 characters"),
    ],
)
def test_other_text_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(text + "\n")


def test_the_number_of_rows_is_bounded() -> None:
    line = 'dra_agent_device_power_watts{{device="d-{0}",family="gpu",pool="n/gpu",product="P"}} 1.0\n'
    with pytest.raises(ValueError, match=f"more than {MAX_ROWS}"):
        parse("".join(line.format(number) for number in range(MAX_ROWS + 1)))
