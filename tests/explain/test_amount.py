"""Quantities of the API as exact numbers."""

from __future__ import annotations

import pytest

from dra_cluster.amount import amount, text


@pytest.mark.parametrize(
    ("quantity", "shown"),
    [
        *(("8", "8"), ("800Gi", "800Gi"), ("3500m", "3500m"), ("1e3", "1000"), ("1024", "1024"), (2.5, "2500m")),
        *((4, "4"), ("-1", "-1"), ("2Ti", "2Ti"), ("1536Mi", "1536Mi"), ("0", "0")),
    ],
)
def test_quantities_are_exact(quantity: str | float, shown: str) -> None:
    number = amount(quantity)
    assert number is not None and text(number) == shown


@pytest.mark.parametrize("quantity", ["many", "", None, True, [], {}, "1e999999999", "9" * 5000, "NaN"])
def test_what_is_not_a_quantity(quantity: object) -> None:
    number = amount(quantity)
    assert number is None or abs(number) < 10**31
