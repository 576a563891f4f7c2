"""Calls of every overload with difficult arguments of each type, and what Kubernetes answers to them.

The overloads are those of the tables in `rust/engine/cel/src/library`. To record the answers after a change:

$ (cd tests/oracle/cel && go build -o /tmp/oracle-cel .) && python tests/cel/product.py /tmp/oracle-cel
"""

# ruff: noqa: RUF001 - letters and digits that only look like those of ASCII are arguments

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
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
            "ſKİ",
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

_NUMBERS = (
    *(
        "1",
        "1.5",
        "-1.5",
        "+1.5",
        " 1",
        "1 ",
        "",
        ".",
        ".5",
        "5.",
        "1e5",
        "1E+5",
        "1e-5",
        "1e",
        "e1",
        "-",
        "--1",
        "0x",
        "1e+",
    ),
    *(
        "1_0",
        "_1",
        "1_",
        "1__0",
        "0x_1p0",
        "0x1_0p0",
        "0x1p1_0",
        "1e1_0",
        "0_1",
        "1_0.5",
        "1_e5",
        "1e_5",
        "0x1_p0",
        "0x1p_1",
        "0x1_.8p0",
        "0x1._8p0",
        "-0x_1p0",
        "+_1",
        "0b1",
        "0o7",
        "00012",
        "-0",
        "0e999",
    ),
    *(
        "0x1p0",
        "0X1P-2",
        "0x1.8p3",
        "0x.8p1",
        "0x1.p1",
        "0x1",
        "0x1.8",
        "0xp1",
        "0x1p",
        "0x1p+",
        "0x1p-1074",
        "0x1p-1075",
    ),
    *(
        "0x1.8p-1075",
        "0x1p1023",
        "0x1p1024",
        "0x1.fffffffffffff8p1023",
        "0x1.fffffffffffff7p1023",
        "0x1.00000000000008p0",
    ),
    *("0x1.000000000000080001p0", "0x1.00000000000018p0", "0x0.0000000000001p-1022", "0x10000000000000000000000p-80"),
    *("0x1p99999999999", "0x1p-99999999999", "0x0p99999999999", "-0x1p-1", "+0x1p-1", "0x1p١"),
    *(
        "5e-324",
        "2.4703282292062327e-324",
        "2.4703282292062328e-324",
        "2.2250738585072011e-308",
        "1e-400",
        "1e309",
        "-1e309",
    ),
    *(
        "1.7976931348623157e308",
        "1.7976931348623159e308",
        "9007199254740993",
        "9007199254740992.999999",
        "1e99999999999",
    ),
    *(
        "inf",
        "Inf",
        "+inf",
        "-INFINITY",
        "infinity",
        "infinit",
        "infinityx",
        "i",
        "nan",
        "NaN",
        "NAN",
        "+nan",
        "-nan",
        "nan1",
        "١",
    ),
)
_INTEGERS = (
    *(
        "0",
        "1",
        "-1",
        "+1",
        "-0",
        "007",
        "",
        "-",
        "+",
        " 1",
        "1 ",
        "1_0",
        "0x1",
        "1.0",
        "1e1",
        "٣",
        "9223372036854775807",
    ),
    *(
        "9223372036854775808",
        "-9223372036854775808",
        "-9223372036854775809",
        "18446744073709551615",
        "18446744073709551616",
    ),
)
_CLASSES = (
    *(
        "L",
        "l",
        "Lu",
        "LC",
        "lc",
        "Cn",
        "Cs",
        "Any",
        "ANY",
        "Assigned",
        "ASCII",
        "ascii",
        "Letter",
        "letter",
        "Cased_Letter",
    ),
    *(
        "cased letter",
        "Greek",
        "greek",
        "GREEK",
        "gReek",
        "_G-r e_ek",
        "Greek ",
        "Grek",
        "isGreek",
        "Script=Greek",
        "sc",
        "Sc",
    ),
    *(
        "Old_Italic",
        "OldItalic",
        "SignWriting",
        "Nko",
        "Zinherited",
        "Inherited",
        "Qaai",
        "digit",
        "punct",
        "cntrl",
        "Digit",
    ),
    *(
        "Alphabetic",
        "Lowercase",
        "Upper",
        "White_Space",
        "Emoji",
        "XIDS",
        "L&",
        "",
        "^",
        "^L",
        "^^L",
        "Latn",
        "Han",
        "Unassigned",
    ),
    *(
        "Surrogate",
        "Co",
        "Zs",
        "Math_Symbol",
        "Math",
        "word",
        "alpha",
        "Age=3.0",
        "Bidi_C",
        "Cased",
        "CWU",
        "Ideo",
        "Dash",
        "Other",
    ),
)
_PATTERNS = (
    *(f"\\p{{{name}}}" for name in _CLASSES),
    *(
        "\\pL",
        "\\pl",
        "\\PL",
        "\\p",
        "\\pé",
        "\\p{L",
        "[\\p{Greek}]",
        "[^\\p{L}]",
        "(?i)\\p{Lu}",
        "[[:word:]]",
        "[[:^alpha:]]",
        "[[:foo:]]",
    ),
    *(
        "(?i)k",
        "(?i)[k]",
        "(?i)ſ",
        "\\w",
        "\\W",
        "\\d",
        "\\s",
        "\\S",
        "\\v",
        "\\h",
        "\\R",
        "\\X",
        "\\N",
        "\\K",
        "\\G",
        "\\C",
        "\\Z",
        "\\z",
        "\\A",
    ),
    *(
        "\\b",
        "\\B",
        "\\ba",
        "a\\b",
        "ä\\b",
        "\\Q*\\E",
        "\\Q\\E*",
        "\\Qab\\E*",
        "\\Q",
        "\\E",
        "\\_",
        "\\-",
        "\\é",
        "\\ ",
        "\\<",
        "\\/",
    ),
    *(
        "\\0",
        "\\01",
        "\\123",
        "\\1",
        "\\8",
        "\\x",
        "\\xZ",
        "\\x41",
        "\\x{41}",
        "\\x{}",
        "\\x{110000}",
        "\\x{D800}",
        "[\\x{D800}-\\x{E000}]",
    ),
    *(
        "\\x{00000000041}",
        "\\u0041",
        "\\cA",
        "\\e",
        "\\a",
        "[\\b]",
        "[a-\\d]",
        "[\\d-z]",
        "[z-a]",
        "[]a]",
        "[^]a]",
        "[]",
        "[a",
        "[a-]",
    ),
    *(
        "[a&&b]",
        "[a~~b]",
        "[a--b]",
        "[[a]]",
        "[[.a.]]",
        "[-a]",
        "[a-b-c]",
        "[\\Qa\\E]",
        "[^\\n]",
        ".",
        "(?s).",
        "(?m)^a$",
        "(?x)a",
        "(?i-)",
    ),
    *(
        "(?-i)a",
        "(?U)a+",
        "(?is-U:a)",
        "(?P<n>a)",
        "(?<n>a)",
        "(?P<1>a)",
        "(?P<ä>a)",
        "(?P<>a)",
        "(?P<n>a)(?P<n>b)",
        "(?P=n)",
        "(?'n'a)",
    ),
    *(
        "(?#c)",
        "(?>a)",
        "(?=a)",
        "(?!a)",
        "(?<=a)",
        "(?:)*",
        "(|a)*",
        "()",
        "a**",
        "a*?",
        "a??",
        "a???",
        "a++",
        "x{2}{3}",
        "^*",
        "$+",
        "\\b*",
    ),
    *(
        "|*",
        "a|*",
        "a||b",
        "{",
        "}",
        "]",
        "{1}",
        "a{1",
        "a{,3}",
        "a{01}",
        "a{1,0}",
        "a{1000}",
        "a{1001}",
        "(a{500}){3}",
        "a{0}",
        "(?i",
        "(?",
    ),
    *("(", ")", "a)", "\\", "", "a", "$", "^$", "\u00e4", "\0", "a\nb"),
)
_ZONES = (
    *(
        "UTC",
        "",
        "utc",
        "+00:00",
        "-00:00",
        "00:00",
        "+01:00",
        "01:30",
        "-01:30",
        "+1:00",
        "+01:0",
        "+1",
        "0100",
        "+0100",
        "+14:00",
    ),
    *(
        "+23:59",
        "+24:00",
        "-24:00",
        "+25:00",
        "+99:99",
        "+00:60",
        "+00:99",
        "+01:-1",
        "-01:-1",
        "+-1:00",
        "--1:00",
        ":30",
        "1:",
        ":",
    ),
    *(
        "+100:00",
        "-2562048:00",
        "+2562048:00",
        "+9223372036854775807:00",
        "+9223372036854775808:00",
        "00:9223372036854775807",
    ),
    *(
        "+153722867280912931:00",
        "2147483648:00",
        "+ 1:00",
        "1:00:00",
        "Nowhere/City",
        "UTC+1",
        "Z",
        "+٠١:٠٠",
        "+1_0:00",
        "+0x1:00",
    ),
)
_DURATIONS = (
    *(
        "1s",
        "0",
        "-0",
        "+1s",
        "1",
        "",
        "s",
        "1.5h",
        ".5s",
        "1.s",
        ".s",
        "1h1h",
        "1m1h",
        "1us",
        "1µs",
        "1μs",
        "1ns",
        "0.5ns",
        "1d",
        "1 s",
    ),
    *(
        "9223372036854775807ns",
        "9223372036854775808ns",
        "-9223372036854775808ns",
        "2562047h48m",
        "1e3s",
        "--1s",
        "-",
        "1h-1m",
        "1_0s",
    ),
    *("0.9999999999999999999s", "9999999999999999999999s", "0.000000001h", "1S"),
)
_TIMES = (
    *(
        "2024-02-29T00:00:00Z",
        "2023-02-29T00:00:00Z",
        "2024-01-01",
        "2024-01-01T00:00:00",
        "2024-01-01t00:00:00z",
        "2024-1-1T0:0:0Z",
    ),
    *(
        "2024-01-01T24:00:00Z",
        "2024-12-31T23:59:60Z",
        "2024-01-01T00:00:00.Z",
        "2024-01-01T00:00:00,5Z",
        "2024-01-01T00:00:00.1234567891Z",
    ),
    *(
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "10000-01-01T00:00:00Z",
        "-001-01-01T00:00:00Z",
    ),
    *(
        "2024-01-01T00:00:00+24:00",
        "2024-01-01T00:00:00+23:60",
        "2024-01-01T00:00:00+0100",
        "2024-01-01 00:00:00Z",
        "",
        "now",
    ),
    *("2024-01-01T00:00:00-00:00", "2024-01-01T00:00:00+01:00", " 2024-01-01T00:00:00Z"),
)
_ADDRESSES = (
    *(
        "1.2.3.4",
        "1.2.3",
        "1.2.3.04",
        "1.2.3.256",
        "::",
        "::1",
        "1::2::3",
        "::ffff:1.2.3.4",
        "fe80::1%eth0",
        "2001:DB8::1",
        "",
        " 1.2.3.4",
    ),
    *(
        "1:2:3:4:5:6:7:8",
        "1:2:3:4:5:6:7:8:9",
        "::1.2.3.4",
        "0x1.2.3.4",
        "1.2.3.4/24",
        "[::1]",
        "12345::",
        "2001:db8:0:0::1",
    ),
)
_NETWORKS = (
    *(
        "1.2.3.4/24",
        "1.2.3.4/33",
        "1.2.3.4/024",
        "1.2.3.4/",
        "1.2.3.4",
        "::/0",
        "::/129",
        "::ffff:1.2.3.4/100",
        "::1%lo/64",
        "1.2.3.4/-1",
    ),
    *("1.2.3.4/+1", "2001:DB8::1/64", "/24", "", "1.2.3.4/24/24"),
)
_URLS = (
    *(
        "https://h",
        "h",
        "//h/p",
        "/p",
        "",
        "http://h:99999/",
        "http://h:a/",
        "http://[::1",
        "http://a b/",
        "http://h/%zz",
        "HTTP://H/",
    ),
    *(
        "http://h/a b",
        "mailto:x",
        "1http://h",
        "http://%41/",
        "http://h?a=%zz&b",
        "http://u:p@h",
        "http://h/?a;b",
        "http://h#%zz",
        ":",
    ),
    *("http://[fe80::1%25eth0]:80/", "https://ä.example/ü?ö", "http://h/\x7f", "*", "/a:b", "a:b"),
)
_QUANTITIES = (
    "1",
    "1.5Gi",
    "1.",
    ".5",
    "",
    "Pi",
    "G",
    "-",
    "1e3",
    "1E3",
    "1e",
    "1Kii",
    " 1",
    "1 ",
    "1_0",
    "+1",
    "1e-10",
    "12345678901234567890",
    "0x1",
    "1k",
    "1K",
    "1ki",
    "NaN",
)
_VERSIONS = (
    *(
        "1.2.3",
        "v1.2.3",
        "1.2",
        "1",
        "01.2.3",
        "1.2.3-",
        "1.2.3-01",
        "1.2.3-a.b",
        "1.2.3+",
        "1.2.3+a_b",
        "1.2.3-a+b",
        "",
        " 1.2.3",
        "1.2.3.4",
    ),
    *("18446744073709551615.0.0", "18446744073709551616.0.0", "1.2.x", "V1.2.3", "vv1.2.3", "1.2.3-ä", "v01.02.03"),
)
_SPECIAL: dict[tuple[str, int], Iterable[str]] = {
    ("string_to_double", 0): _NUMBERS,
    ("string_to_int64", 0): _INTEGERS,
    ("string_to_uint64", 0): _INTEGERS,
    ("string_to_bool", 0): ("true", "True", "TRUE", "tRUE", "t", "1", "false", "f", "0", "", "yes", " true"),
    ("string_to_duration", 0): _DURATIONS,
    ("string_to_timestamp", 0): _TIMES,
    ("string_to_ip", 0): _ADDRESSES,
    ("is_ip", 0): _ADDRESSES,
    ("string_to_cidr", 0): _NETWORKS,
    ("is_cidr", 0): _NETWORKS,
    ("string_to_url", 0): _URLS,
    ("is_url_string", 0): _URLS,
    ("string_to_quantity", 0): _QUANTITIES,
    ("is_quantity_string", 0): _QUANTITIES,
    ("string_to_semver", 0): _VERSIONS,
    ("string_bool_to_semver", 0): _VERSIONS,
    ("is_semver_string", 0): _VERSIONS,
    ("is_semver_string_bool", 0): _VERSIONS,
    ("format-validate", 1): ("a", "A", "-a", "a" * 64, "a.b", "http://h", "2024-02-30", "YQ==", "YQ", "", "/p", "ä"),
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
            special = _ZONES
        choices.append([quoted(text) for text in special] if special is not None else values(type_))
    if ((overload.id, 1) in _SPECIAL and "find" in overload.id) or overload.id.startswith("matches"):
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
