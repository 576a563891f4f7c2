"""Calls of every overload with difficult arguments of each type, and what Kubernetes answers to them.

The overloads are those of the tables in `rust/engine/cel/src/library`. To record the answers after a change:

$ (cd tests/oracle/cel && go build -o /tmp/oracle-cel .) && python tests/cel/product.py /tmp/oracle-cel
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GOLDEN = HERE / "product.json"
LIBRARY = HERE.parents[1] / "rust/engine/cel/src/library"
_ROW = re.compile(r'\b(global|member)\(\s*"([^"]+)",\s*"([^"]+)",\s*"([^"]*)",\s*"([^"]*)"')
_INTERNAL = re.compile(r"^(@|cel\.@|_\?\._|_\[)")
"""Functions that only macros and syntax call."""


@dataclass(frozen=True)
class Overload:
    """One row of a table."""

    id: str
    function: str
    is_member: bool
    args: tuple[str, ...]
    result: str


def overloads() -> list[Overload]:
    """Return the overloads that an expression can call."""
    found = []
    for path in sorted(LIBRARY.glob("**/*.rs")):
        for form, name, function, args, result in _ROW.findall(path.read_text()):
            types = tuple(one.strip() for one in args.split(";") if one.strip())
            found.append(Overload(name, function, form == "member", types, result))
    return [one for one in found if not _INTERNAL.match(one.function)]


def quoted(text: str) -> str:
    """Return a text as a literal of CEL."""
    plain = (char if " " <= char <= "~" and char not in '"\\' else f"\\U{ord(char):08x}" for char in text)
    return '"' + "".join(plain) + '"'


def _calls(function: str, texts: Iterable[str]) -> list[str]:
    return [f"{function}({quoted(text)})" for text in texts]


_VALUES: dict[str, list[str]] = {
    "bool": ["true", "false"],
    "int": ["0", "1", "-1", "2", "3", "100", "9223372036854775807", "-9223372036854775808"],
    "uint": ["0u", "1u", "7u", "18446744073709551615u"],
    "double": [
        *("0.0", "1.5", "-1.5", "-0.0", "1e6", "1e21", "1e308", "5e-324", "9223372036854775807.0"),
        *_calls("double", ("NaN", "Infinity", "-Infinity")),
    ],
    "string": [
        quoted(text)
        for text in (
            "",
            "a",
            "abc abc",
            "äÖß😀",
            "\0\x7f",
            " \t\xa0x\u3000\x85 ",
            "A.B-c_d/e",
            '"\\\a\b\f\v',
            "%d%s",
            "\u017fK\u0130",
        )
    ],
    "bytes": ['b""', 'b"a"', 'b"\\xff\\x00"', 'b"\\xc3\\xa4"'],
    "duration": _calls(
        "duration", ("0s", "1s", "-1ns", "90m1.5s", "2562047h47m16.854775807s", "-2562047h47m16.854775808s")
    ),
    "timestamp": _calls(
        "timestamp",
        (
            *("1970-01-01T00:00:00Z", "2024-02-29T23:59:59.789+05:30", "0001-01-01T00:00:00Z"),
            *("9999-12-31T23:59:59.999999999Z", "1969-12-31T23:59:59.5Z"),
        ),
    ),
    "ip": _calls(
        "ip", ("127.0.0.1", "0.0.0.0", "::", "::1", "fe80::1", "2001:db8::ff", "224.0.0.1", "169.254.0.1", "ff02::1")
    ),
    "cidr": _calls("cidr", ("192.168.1.5/24", "0.0.0.0/0", "10.0.0.1/32", "::/0", "2001:db8::1/127")),
    "url": _calls(
        "url",
        (
            "https://user:p@example.com:80/a%20b/c?x=1&x=2&y#f",
            "http://[::1]:8080/",
            "/path?q=a+b%21",
            "mailto:a@b",
            "https://h",
        ),
    ),
    "quantity": _calls(
        "quantity", ("0", "1", "-1", "1.5Gi", "100m", "1e3", "12E", "9223372036854775807", "0.1n", "-5Ki")
    ),
    "semver": _calls("semver", ("1.2.3", "1.2.3-alpha.1+b", "0.0.0", "1.2.3-alpha.beta", "9007199254740993.0.0")),
    "dyn": ["dyn(1)", 'dyn("a")', "dyn(1.0)", "dyn([1, 2])", "dyn(null)", "dyn(b'a')"],
    "format": ["format.dns1123Label()", "format.uri()", "format.date()", "format.byte()"],
}


_ARGUMENTS: dict[str, list[str]] = json.loads((HERE / "arguments.json").read_text())
_PATTERNS = [f"\\p{{{name}}}" for name in _ARGUMENTS["classes"]] + _ARGUMENTS["patterns"]
_LISTS = {
    "numbers": [("string_to_double", 0)],
    "integers": [("string_to_int64", 0), ("string_to_uint64", 0)],
    "booleans": [("string_to_bool", 0)],
    "durations": [("string_to_duration", 0)],
    "times": [("string_to_timestamp", 0)],
    "addresses": [("string_to_ip", 0), ("is_ip", 0)],
    "networks": [("string_to_cidr", 0), ("is_cidr", 0)],
    "urls": [("string_to_url", 0), ("is_url_string", 0)],
    "quantities": [("string_to_quantity", 0), ("is_quantity_string", 0)],
    "versions": [
        *(("string_to_semver", 0), ("string_bool_to_semver", 0)),
        *(("is_semver_string", 0), ("is_semver_string_bool", 0)),
    ],
    "formatted": [("format-validate", 1)],
}
_SPECIAL: dict[tuple[str, int], Sequence[str]] = {
    **{place: _ARGUMENTS[name] for name, places in _LISTS.items() for place in places},
    **{(name, 1): _PATTERNS for name in ("matches", "matches_string")},
    **{(name, 1): _PATTERNS[-60:] for name in ("string_find_string", "string_find_all_string")},
}
_SAMPLE = quoted("aB1_ äÄß \u212a\u03a9\u0416 \u0378\n$-k")
"""What patterns are compared with: letters of several cases and scripts, an unassigned character."""


def values(type_: str) -> list[str]:
    """Return literals of a type; a type parameter is an int here."""
    if type_ in _VALUES:
        return _VALUES[type_]
    generic = re.fullmatch(r"(list|map|optional|type)<(.*)>", type_)
    if generic is None:
        return _VALUES["int"]
    form, inner = generic.groups()
    if form == "list":
        items = values(inner)
        lists = ["[]", f"[{items[0]}]", f"[{items[1]}, {items[0]}, {items[1]}]", f"[{', '.join(items)}]"]
        return [text for text in lists if inner != "dyn" or text != "[]"]
    if form == "map":
        key, value = (values(one) for one in inner.split(",", 1))
        return [f"{{{key[0]}: {value[0]}}}", f"{{{key[0]}: {value[0]}, {key[1]}: {value[1]}}}"]
    if form == "optional":
        return [f"optional.of({values(inner)[0]})", f"optional.of({values(inner)[1]})"]
    return ["int"]


def _arguments(overload: Overload) -> Iterator[tuple[str, ...]]:
    """Yield each value at each position, with the first values of the other positions."""
    choices = []
    for index, type_ in enumerate(overload.args):
        special = _SPECIAL.get((overload.id, index))
        if special is None and index and overload.id.endswith("_with_tz"):
            special = _ARGUMENTS["zones"]
        choices.append([quoted(text) for text in special] if special is not None else values(type_))
    if (overload.id, 1) in _SPECIAL and overload.id.startswith(("string_find", "matches")):
        choices[0] = [_SAMPLE]
    if not choices:
        yield ()
    for index, own in enumerate(choices):
        for value in own:
            for other in range(3 if len(choices) > 1 else 1):
                yield tuple(value if at == index else one[other % len(one)] for at, one in enumerate(choices))


def _call(overload: Overload, args: tuple[str, ...]) -> str:
    operator = re.fullmatch(r"_(\W+)_", overload.function)
    if operator:
        return f"({args[0]} {operator[1]} {args[1]})"
    if overload.function == "_?_:_":
        return f"({args[0]} ? {args[1]} : {args[2]})"
    if overload.function in ("!_", "-_"):
        return f"({overload.function[0]}({args[0]}))"
    if overload.is_member:
        return f"{args[0]}.{overload.function}({', '.join(args[1:])})"
    return f"{overload.function}({', '.join(args)})"


_SHOWN = {
    "double": "string({})",
    "ip": "string({})",
    "cidr": "string({})",
    "list<double>": "{}.map(one, string(one))",
    "quantity": "string({}.asApproximateFloat())",
    "semver": "[{0}.major(), {0}.minor(), {0}.patch()]",
    "url": "[{0}.getScheme(), {0}.getHost(), {0}.getHostname(), {0}.getPort(), {0}.getEscapedPath()]",
    "format": '{}.validate("a_B/c").hasValue()',
    "optional<list<string>>": "{}.hasValue()",
}
"""Expressions that show a value of a type without a literal, or without one that is equal to it."""


def calls() -> dict[str, str]:
    """Return the calls, with what shows the result of each."""
    found = {}
    for overload in overloads():
        for args in _arguments(overload):
            call = _call(overload, args)
            found[call] = _SHOWN.get(overload.result, "{}").format(call)
    return found


def record(binary: str) -> None:
    """Write product.json: an expression that compares a call with its result → the outcome in Kubernetes."""
    sys.path.insert(0, str(HERE.parent))
    from cel import answers

    def ask(questions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        lines = "".join(json.dumps(question) + "\n" for question in questions)
        result = subprocess.run([binary], input=lines, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in result.stdout.splitlines()]

    device = json.loads((HERE / "devices.json").read_text())["bare"]
    found = calls()
    results = ask({"expr": shown, "value": True} for shown in found.values())
    expressions = []
    for (call, shown), result in zip(found.items(), results, strict=True):
        literal = result.get("literal")
        expressions.append(f"{shown} == {literal}" if literal else f"[{call}].size() == 1")
    outcomes = map(answers.of_kubernetes, ask({"expr": text, **device} for text in expressions))
    rows = dict(zip(expressions, outcomes, strict=True))
    lines = ",\n".join(f"{json.dumps(text)}: {json.dumps(outcome)}" for text, outcome in rows.items())
    GOLDEN.write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    record(sys.argv[1])
