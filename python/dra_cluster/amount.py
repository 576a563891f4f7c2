"""Quantities of the API as exact numbers, for sums of quotas."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from dra_agent import _native

MAX_EXPONENT = 30
"""Of a decimal exponent; the largest quantity of the API is below 10 to the 19th."""
_CANONICAL = re.compile(r"(-?\d{1,40})(?:([numkMGTPE]|[KMGTPE]i)|e([+-]?\d{1,3}))?")
_POWERS = {
    **{suffix: Fraction(10) ** power for suffix, power in zip("num", (-9, -6, -3), strict=True)},
    **{suffix: Fraction(10) ** (3 * place) for place, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1 << 10 * place) for place, suffix in enumerate("KMGTPE", 1)},
}


def amount(value: Any) -> Fraction | None:
    """Return a quantity as a number; None if it is not a quantity."""
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        return None
    try:
        found = _CANONICAL.fullmatch(_native.quantity_canonical(str(value)))
    except ValueError:
        return None
    if found is None:
        return None
    number, suffix, exponent = found.groups()
    if exponent is not None:
        power = int(exponent)
        return int(number) * Fraction(10) ** power if abs(power) <= MAX_EXPONENT else None
    return int(number) * (_POWERS[suffix] if suffix else Fraction(1))


def text(number: Fraction) -> str:
    """Return a number as a quantity, with a binary suffix where it is a multiple of 1Mi."""
    if number.denominator != 1:
        return _native.quantity_canonical(f"{float(number):.9f}")
    whole = int(number)
    if not whole or whole % (1 << 20):
        return str(whole)
    suffixes = ["Mi", "Gi", "Ti", "Pi", "Ei"]
    whole >>= 20
    while whole % 1024 == 0 and len(suffixes) > 1:
        whole, suffixes = whole >> 10, suffixes[1:]
    return f"{whole}{suffixes[0]}"
