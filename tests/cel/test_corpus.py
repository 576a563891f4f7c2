from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from cel import answers, generate
from cel.conftest import Ask, Devices

HERE = Path(__file__).parent


def corpus() -> list[tuple[str, bool]]:
    """Expressions, each with whether its cost is defined."""
    lines = (HERE / "corpus.txt").read_text().splitlines()
    lines = [line for line in lines if line.strip() and not line.startswith("# ")]
    return [(line.removeprefix("~ "), not line.startswith("~ ")) for line in lines]


def differences(expected: dict[str, str], actual: dict[str, str], costed: dict[str, bool]) -> list[str]:
    found = []
    for key, wanted in expected.items():
        got = actual[key]
        if not costed[key]:
            wanted, got = answers.without_cost(wanted), answers.without_cost(got)
        if wanted != got:
            found.append(f"{key}: Kubernetes says {wanted}, we say {got}")
    return found


def ours(expressions: Sequence[tuple[str, bool]], devices: Devices) -> dict[str, str]:
    return {
        f"{name} | {text}": answers.of_ours(text, device["driver"], device["device"])
        for text, _ in expressions
        for name, device in devices.items()
    }


def kubernetes(ask: Ask, expressions: Sequence[tuple[str, bool]], devices: Devices) -> dict[str, str]:
    keys = [f"{name} | {text}" for text, _ in expressions for name in devices]
    questions = [{"expr": text, **device} for text, _ in expressions for device in devices.values()]
    return dict(zip(keys, map(answers.of_kubernetes, ask(questions)), strict=True))


def costs(expressions: Sequence[tuple[str, bool]], devices: Devices) -> dict[str, bool]:
    return {f"{name} | {text}": costed for text, costed in expressions for name in devices}


def test_corpus_is_answered_as_recorded_from_kubernetes(devices: Devices) -> None:
    recorded = json.loads((HERE / "golden.json").read_text())
    expressions = corpus()
    names = list(devices)
    expected = {
        f"{name} | {text}": answer for text, row in recorded.items() for name, answer in zip(names, row, strict=True)
    }
    assert {text for text, _ in expressions} == set(recorded), "golden.json is not of this corpus: run record.py"
    assert differences(expected, ours(expressions, devices), costs(expressions, devices)) == []


def test_corpus_is_answered_as_by_kubernetes(ask_kubernetes: Ask, devices: Devices) -> None:
    expressions = corpus()
    expected = kubernetes(ask_kubernetes, expressions, devices)
    assert differences(expected, ours(expressions, devices), costs(expressions, devices)) == []


@pytest.mark.parametrize("seed", [20261121, 7])
def test_random_expressions_are_answered_as_by_kubernetes(ask_kubernetes: Ask, devices: Devices, seed: int) -> None:
    expressions = [(text, True) for text in generate.expressions(seed, 3000)]
    devices = {name: devices[name] for name in ("gpu", "bare")}
    expected = kubernetes(ask_kubernetes, expressions, devices)
    # The grammar must reach all kinds of answers, or the test says nothing.
    kinds = {answers.without_cost(answer) for answer in expected.values()}
    assert kinds >= {"compile", "error", "true", "false"}
    assert differences(expected, ours(expressions, devices), costs(expressions, devices)) == []


def test_mutated_expressions_are_answered_as_by_kubernetes(ask_kubernetes: Ask, devices: Devices) -> None:
    # What docs/cel.md names as different, what depends on the order of a map, and what takes Kubernetes minutes.
    left_out = re.compile(
        r"lists\.range|google|\\\\B|get[A-Z]|\bv\b|device\.(attributes|capacity)\b[^.]*\.(map|all|exists|filter)"
    )
    originals = [text for text, costed in corpus() if costed and not left_out.search(text)]
    mutants = [text for text in generate.mutations(1, 6000, originals) if not left_out.search(text)]
    expressions = [(text, True) for text in dict.fromkeys(mutants)]
    devices = {"gpu": devices["gpu"]}
    expected = kubernetes(ask_kubernetes, expressions, devices)
    assert len(expected) > 2000
    assert differences(expected, ours(expressions, devices), costs(expressions, devices)) == []
