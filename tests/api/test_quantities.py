"""Quantities in the Python binding, and the golden values compared with the Go library."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

import tiers
from dra_agent import _native
from oracle import go

HERE = Path(__file__).parent


def test_quantities_from_python() -> None:
    assert _native.quantity_value("1.5Gi") == 1610612736
    assert _native.quantity_value("100m") == 1
    assert _native.quantity_canonical("1.5Gi") == "1536Mi"
    assert _native.quantity_compare("1G", "1Gi") == -1
    assert _native.quantity_compare("1024Mi", "1Gi") == 0
    with pytest.raises(ValueError, match='"80 GB" is not a quantity: write a number and a suffix'):
        _native.quantity_value("80 GB")


def test_the_longest_quantity_is_written_without_a_division_for_each_digit() -> None:
    """With one, a capacity takes seconds of CPU time instead of milliseconds."""
    longest = "123456789012345678901e100000"
    began = time.thread_time()
    for _ in range(20):
        assert _native.quantity_canonical(longest) == "1234567890123456789010e99999"
    assert time.thread_time() - began < 20


@tiers.GO
def test_golden_values_match_the_go_library() -> None:
    oracle = go.build(HERE / "oracle", "quantities")
    golden = (HERE / "golden/quantities.jsonl").read_text()
    texts = "".join(json.loads(line)["text"] + "\n" for line in golden.splitlines())
    output = subprocess.run([oracle], input=texts, capture_output=True, text=True, check=True).stdout
    assert output == golden
