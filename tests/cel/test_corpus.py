from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from cel import answers, generate
from cel.conftest import Devices, Evaluate

HERE = Path(__file__).parent
EXPRESSIONS = int(os.environ.get("DRA_AGENT_TEST_EXPRESSIONS", "300"))
"""Random expressions of each seed, and half of the mutations; `make test-cel` has more."""


def corpus() -> list[tuple[str, bool]]:
    """Return the expressions, each with whether its cost is deterministic."""
    lines = (HERE / "corpus.txt").read_text().splitlines()
    lines = [line for line in lines if line.strip() and not line.startswith("# ")]
    return [(line.removeprefix("~ "), not line.startswith("~ ")) for line in lines]


def differences(expected: dict[str, str], actual: dict[str, str], deterministic: dict[str, bool]) -> list[str]:
    found = []
    for key, expected_outcome in expected.items():
        outcome = actual[key]
        if not deterministic[key]:
            expected_outcome, outcome = answers.without_cost(expected_outcome), answers.without_cost(outcome)
        if expected_outcome != outcome:
            found.append(f"{key}: Kubernetes {expected_outcome}, agent {outcome}")
    return found


def agent_outcomes(expressions: Sequence[tuple[str, bool]], devices: Devices) -> dict[str, str]:
    return {
        f"{name} | {text}": answers.of_agent(text, device["driver"], device["device"])
        for text, _ in expressions
        for name, device in devices.items()
    }


def kubernetes_outcomes(
    evaluate: Evaluate, expressions: Sequence[tuple[str, bool]], devices: Devices
) -> dict[str, str]:
    keys = [f"{name} | {text}" for text, _ in expressions for name in devices]
    queries = [{"expr": text, **device} for text, _ in expressions for device in devices.values()]
    return dict(zip(keys, map(answers.of_kubernetes, evaluate(queries)), strict=True))


def cost_is_deterministic(expressions: Sequence[tuple[str, bool]], devices: Devices) -> dict[str, bool]:
    return {f"{name} | {text}": deterministic for text, deterministic in expressions for name in devices}


def test_corpus_matches_the_recorded_outcomes_of_kubernetes(devices: Devices) -> None:
    recorded = json.loads((HERE / "golden.json").read_text())
    expressions = corpus()
    names = list(devices)
    expected = {
        f"{name} | {text}": answer for text, row in recorded.items() for name, answer in zip(names, row, strict=True)
    }
    assert {text for text, _ in expressions} == set(recorded), "golden.json does not match the corpus: run record.py"
    assert (
        differences(expected, agent_outcomes(expressions, devices), cost_is_deterministic(expressions, devices)) == []
    )


def test_corpus_matches_kubernetes(evaluate_with_kubernetes: Evaluate, devices: Devices) -> None:
    expressions = corpus()
    expected = kubernetes_outcomes(evaluate_with_kubernetes, expressions, devices)
    assert (
        differences(expected, agent_outcomes(expressions, devices), cost_is_deterministic(expressions, devices)) == []
    )


@pytest.mark.parametrize("seed", [20261121, 7])
def test_random_expressions_match_kubernetes(evaluate_with_kubernetes: Evaluate, devices: Devices, seed: int) -> None:
    expressions = [(text, True) for text in generate.expressions(seed, EXPRESSIONS)]
    devices = {name: devices[name] for name in ("gpu", "bare")}
    expected = kubernetes_outcomes(evaluate_with_kubernetes, expressions, devices)
    # The grammar must produce all kinds of outcomes, otherwise the test proves nothing.
    kinds = {answers.without_cost(answer) for answer in expected.values()}
    assert kinds >= {"compile", "error", "true", "false"}
    assert (
        differences(expected, agent_outcomes(expressions, devices), cost_is_deterministic(expressions, devices)) == []
    )


def test_mutated_expressions_match_kubernetes(evaluate_with_kubernetes: Evaluate, devices: Devices) -> None:
    # Documented differences (docs/reference/cel.md), results that depend on map order, and slow expressions.
    excluded = re.compile(
        r"lists\.range|google|\\\\B|get[A-Z]|\bv\b|device\.(attributes|capacity)\b[^.]*\.(map|all|exists|filter)"
    )
    originals = [text for text, deterministic in corpus() if deterministic and not excluded.search(text)]
    mutants = [text for text in generate.mutations(1, 2 * EXPRESSIONS, originals) if not excluded.search(text)]
    expressions = [(text, True) for text in dict.fromkeys(mutants)]
    devices = {"gpu": devices["gpu"]}
    expected = kubernetes_outcomes(evaluate_with_kubernetes, expressions, devices)
    assert len(expected) > EXPRESSIONS * 2 // 3
    assert (
        differences(expected, agent_outcomes(expressions, devices), cost_is_deterministic(expressions, devices)) == []
    )
