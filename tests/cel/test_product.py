"""Every overload answers as Kubernetes does, with difficult arguments of each type."""

from __future__ import annotations

import json

from cel import answers, product
from cel.conftest import Devices, Evaluate


def recorded() -> dict[str, str]:
    outcomes: dict[str, str] = json.loads(product.GOLDEN.read_text())
    return outcomes


def test_each_call_has_the_recorded_result_of_kubernetes(devices: Devices) -> None:
    device = devices["bare"]
    different = [
        f"{text}: Kubernetes {expected}, agent {actual}"
        for text, expected in recorded().items()
        if (actual := answers.of_agent(text, device["driver"], device["device"])) != expected
    ]
    assert different == []


def test_each_overload_is_called_with_each_argument() -> None:
    text = "\n".join(recorded())
    assert [call for call in product.calls() if call not in text] == []


def test_the_recorded_results_are_those_of_kubernetes(evaluate_with_kubernetes: Evaluate, devices: Devices) -> None:
    outcomes = recorded()
    replies = evaluate_with_kubernetes([{"expr": text, **devices["bare"]} for text in outcomes])
    assert dict(zip(outcomes, map(answers.of_kubernetes, replies), strict=True)) == outcomes
