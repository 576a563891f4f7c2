"""Scalars of CDI files as the YAML libraries of Go read them, by the type that the value is for.

CDI 0.8 and 1.0 use yaml.v2 and convert to JSON (sigs.k8s.io/yaml); CDI 1.1 uses yaml.v3, whose texts stay as written.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from typing import NamedTuple

Value = None | bool | int | float | str
_BOOLS = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_OLD_BOOLS = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF"), False),
}
_NULLS = ("", "~", "null", "Null", "NULL")
_INFINITIES = {
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_INT = re.compile(r"([-+]?)(0[bB][01]+|0[oO]?[0-7]+|0[xX][0-9a-fA-F]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INT_64 = range(-(1 << 63), 1 << 63)
_UINT_64 = range(1 << 64)
_MAX_DIGITS = 400
"""Digits of a number that is read: a float has at most 309 before its point."""
_TAG = "tag:yaml.org,2002:"
_EXPONENT_FROM = 6
"""Powers of ten that Go writes with an exponent in the shortest form."""
_JSON_EXPONENT = 1e21
"""From here on, JSON of Go has an exponent, which no integer has."""


class Scalar(NamedTuple):
    """A scalar as it is written."""

    text: str
    tag: str | None = None
    """None: it is plain, so that its text decides. Else its tag, or "" of quoted text."""


def resolved(scalar: Scalar, *, old: bool) -> Value:
    """Return the value without a target type; raises ValueError if it is not of its tag."""
    if scalar.tag is None:
        return _plain(scalar.text, old=old)
    name = scalar.tag.removeprefix(_TAG)
    if name == "binary":
        return _binary(scalar.text)
    if name == scalar.tag or name not in ("int", "float", "bool", "null"):
        return scalar.text
    value = _plain(scalar.text, old=old)
    expected = {"int": int, "float": float, "bool": bool, "null": type(None)}[name]
    if name == "float" and type(value) is int:
        return float(value)
    if type(value) is not expected:
        raise ValueError(f"{scalar.text!r} is not of type {name}")
    return value


def text_of(scalar: Scalar, *, old: bool) -> str | None:
    """Return the value for a text; None for null. Raises ValueError if it cannot be one."""
    value = resolved(scalar, old=old)
    if value is None or isinstance(value, str):
        return value
    if not old:
        return scalar.text
    if isinstance(value, bool):
        return "true" if value else "false"
    return _format_float(value) if isinstance(value, float) else str(value)


def integer_of(scalar: Scalar, *, old: bool) -> int | None:
    """Return the value for an integer of any size; None for null. Raises ValueError if it cannot be one."""
    value = resolved(scalar, old=old)
    if value is None or type(value) is int:
        return value
    if isinstance(value, float) and abs(value) < _JSON_EXPONENT and (not old or value == int(value)):
        return int(value)
    raise ValueError(f"{scalar.text!r} is not an integer")


def bool_of(scalar: Scalar, *, old: bool) -> bool | None:
    """Return the value for a truth value; None for null. Raises ValueError if it cannot be one."""
    value = resolved(scalar, old=old)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) and not old and value in _OLD_BOOLS:
        return _OLD_BOOLS[value]
    raise ValueError(f"{scalar.text!r} is neither true nor false")


def _plain(text: str, *, old: bool) -> Value:
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if old and text in _OLD_BOOLS:
        return _OLD_BOOLS[text]
    if text in _INFINITIES:
        return _INFINITIES[text]
    if not (text[0].isascii() and (text[0].isdigit() or text[0] in "+-.")) or len(text) > _MAX_DIGITS:
        return text
    digits = text if text[0] == "." else text.replace("_", "")
    if match := _INT.fullmatch(digits):
        number = _integer(match[1], match[2])
        if number in _INT_64 or (not match[1] and number in _UINT_64):
            return number
    if _FLOAT.fullmatch(digits) and not math.isinf(number_ := float(digits)):
        return number_
    return text


def _integer(sign: str, digits: str) -> int:
    base = {"0b": 2, "0o": 8, "0x": 16}.get(digits[:2].lower())
    if base is None:
        base = 8 if digits[0] == "0" else 10
    else:
        digits = digits[2:]
    return int(sign + digits, base)


def _binary(text: str) -> str:
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode(errors="replace")
    except (binascii.Error, ValueError) as error:
        raise ValueError("a !!binary value is not base64") from error


def _format_float(value: float) -> str:
    """Format as Go's strconv.FormatFloat(value, 'g', -1, 32) does."""
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    try:
        short = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return "+Inf" if value > 0 else "-Inf"
    text = next(
        text
        for digits in range(9)
        if struct.unpack("f", struct.pack("f", float(text := f"{short:.{digits}e}")))[0] == short or digits == 8
    )
    mantissa, _, exponent = text.partition("e")
    power = int(exponent)
    if power < -4 or power >= _EXPONENT_FROM:
        return f"{mantissa}e{'-' if power < 0 else '+'}{abs(power):02d}"
    return f"{float(text):.{max(0, len(mantissa.partition('.')[2]) - power)}f}"
