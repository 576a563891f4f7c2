"""Sentences of `explain` are right for one pod, for several and for none."""

from __future__ import annotations

import pytest

from dra_cluster.explain.counts import counted, has, share_of, there_are


@pytest.mark.parametrize(("number", "text"), [(0, "0 pods"), (1, "1 pod"), (2, "2 pods")])
def test_a_number_has_its_noun(number: int, text: str) -> None:
    assert counted(number, "pod") == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 1, "0 of 1 pod"), (1, 1, "1 of 1 pod"), (1, 2, "1 of 2 pods"), (2, 2, "all 2 pods"), (0, 0, "0 of 0 pods")],
)
def test_a_share_is_of_all(part: int, whole: int, text: str) -> None:
    assert share_of(part, whole, "pod") == text


@pytest.mark.parametrize(
    ("number", "verb", "text"), [(0, "have", "are none"), (1, "has", "is 1"), (2, "have", "are 2")]
)
def test_a_number_has_its_verb(number: int, verb: str, text: str) -> None:
    assert has(number) == verb and there_are(number) == f"there {text}"
