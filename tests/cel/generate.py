"""Random expressions: from a grammar, mostly well-typed so that they compile, and mutations of given ones.

The same seed gives the same expressions. Validity is not checked: both implementations must agree on each.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from functools import partial

DOMAINS = ["gpu.example.com", "resource.kubernetes.io", "other.example.com"]
NAMES = ["model", "index", "shared", "driverVersion", "missing", "pcieRoot", "numaNode", "list", "ints"]
STRINGS = ['""', '"H100"', '"gpu"', '"a b"', '"550.54.15"', '"80Gi"', '"ä"', "'x'", '"1"']
QUANTITIES = ['"80Gi"', '"1"', '"1.5"', '"100m"', '"-1k"', '"0"', '"1e3"', '"abc"']
VERSIONS = ['"1.2.3"', '"550.54.15"', '"1.0.0-rc.1"', '"v1"', '"1.2"']
PATTERNS = ['"^H"', '"[0-9]+"', '"a|b"', '"(x"', '"\\\\d"', '""']


class Grammar:
    """Builds expressions of a given type, up to a depth."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.variables: list[tuple[str, str]] = []

    def expression(self) -> str:
        """Return one selector."""
        self.variables = []
        return self.of("bool", self.random.randint(1, 4))

    def of(self, kind: str, depth: int) -> str:
        """Return an expression of a type, sometimes of another by mistake."""
        if self.random.random() < 0.02:
            kind = self.random.choice(["bool", "int", "string", "quantity", "list", "dyn", "double", "optional"])
        known = [name for name, of in self.variables if of == kind]
        if known and self.random.random() < 0.3:
            return self.random.choice(known)
        if depth <= 0 or self.random.random() < 0.15:
            return self.leaf(kind)
        built: str = getattr(self, f"make_{kind}")(depth - 1)
        return built

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def leaf(self, kind: str) -> str:
        domain, name = self.random.choice(DOMAINS), self.random.choice(NAMES)
        attribute = f'device.attributes["{domain}"].{name}'
        leaves = {
            "bool": ["true", "false", "device.allowMultipleAllocations", "dyn(1)", attribute, f"has({attribute})"],
            "int": ["0", "1", "-1", "3", "9223372036854775807", "1/0", attribute, "size(device.attributes)"],
            "double": ["0.0", "1.5", "-2.0", "1e300", "0.0/0.0"],
            "string": [*STRINGS, "device.driver", attribute],
            "quantity": [f"quantity({self.random.choice(QUANTITIES)})", 'device.capacity["gpu.example.com"].memory'],
            "version": [
                f"semver({self.random.choice(VERSIONS)})",
                'device.attributes["gpu.example.com"].driverVersion',
            ],
            "list": ["[]", "[1, 2, 3]", "[3, 1]", "[dyn(1)]", 'device.attributes["gpu.example.com"].ints'],
            "strings": ["[]", '["a", "H100"]', 'device.attributes["gpu.example.com"].list'],
            "map": ["{}", '{"a": 1}', '{"a": 1, "b": 2}'],
            "optional": ["optional.none()", "optional.of(1)", f'device.attributes["{domain}"].?{name}'],
            "dyn": [attribute, "dyn(1)", 'dyn("a")', "dyn([1])", "null", f'device.attributes["{domain}"]'],
        }
        return self.random.choice(leaves[kind])

    def make_bool(self, d: int) -> str:
        r = self.random.randint(0, 22)
        b, i, s, q = (partial(self.of, kind, d) for kind in ("bool", "int", "string", "quantity"))
        compare = self.pick("==", "!=", "<", "<=", ">", ">=")
        same = self.pick("==", "!=")
        forms: list[Callable[[], str]] = [
            lambda: f"({b()} && {b()})",
            lambda: f"({b()} || {b()})",
            lambda: f"!({b()})",
            lambda: f"({b()} ? {b()} : {b()})",
            lambda: f"({i()} {compare} {i()})",
            lambda: f"({s()} {compare} {s()})",
            lambda: f"({self.of('dyn', d)} {same} {self.of('dyn', d)})",
            lambda: f"({i()} in {self.of('list', d)})",
            lambda: f"({s()} in {self.of('strings', d)})",
            lambda: f"({s()} in {self.of('map', d)})",
            lambda: f"{s()}.{self.pick('startsWith', 'endsWith', 'contains')}({s()})",
            lambda: f"{s()}.matches({self.random.choice(PATTERNS)})",
            lambda: f"{q()}.{self.pick('isGreaterThan', 'isLessThan')}({q()})",
            lambda: f"({q()} {same} {q()})",
            lambda: f"{self.of('version', d)}.{self.pick('isGreaterThan', 'isLessThan')}({self.of('version', d)})",
            lambda: f"{self.of('optional', d)}.hasValue()",
            lambda: self.loop(self.pick("all", "exists", "exists_one"), "list", "int", "bool", d),
            lambda: self.loop(self.pick("all", "exists"), "strings", "string", "bool", d),
            lambda: f"({self.of('list', d)} {same} {self.of('list', d)})",
            lambda: f"({self.of('map', d)} {same} {self.of('map', d)})",
            lambda: (
                f"sets.{self.pick('contains', 'intersects', 'equivalent')}({self.of('list', d)}, {self.of('list', d)})"
            ),
            lambda: self.bind(self.pick("int", "string", "dyn", "list"), "bool", d),
            lambda: f"({self.of('double', d)} {compare} {self.pick(self.of('double', d), i())})",
        ]
        return forms[r]()

    def make_int(self, d: int) -> str:
        return self.pick(
            f"({self.of('int', d)} {self.pick('+', '-', '*', '/', '%')} {self.of('int', d)})",
            f"size({self.pick(self.of('string', d), self.of('list', d), self.of('map', d))})",
            f"{self.of('quantity', d)}." + self.pick("asInteger()", "sign()", 'compareTo(quantity("1"))'),
            f"{self.of('version', d)}." + self.pick("major()", "patch()", 'compareTo(semver("1.2.3"))'),
            f"{self.of('list', d)}.{self.pick('sum()', 'max()', 'min()', 'indexOf(1)', 'first().orValue(7)')}",
            f"{self.of('list', d)}[{self.of('int', d)}]",
            f"int({self.pick(self.of('string', d), self.of('double', d))})",
            f"{self.of('string', d)}.{self.pick('indexOf', 'lastIndexOf')}({self.of('string', d)})",
            f"{self.of('optional', d)}.orValue({self.of('int', d)})",
            f"{self.of('map', d)}[{self.of('string', d)}]",
            f"({self.of('bool', d)} ? {self.of('int', d)} : {self.of('int', d)})",
            self.bind("int", "int", d),
        )

    def make_double(self, d: int) -> str:
        return self.pick(
            f"({self.of('double', d)} {self.pick('+', '-', '*', '/')} {self.of('double', d)})",
            f"double({self.pick(self.of('int', d), self.of('string', d))})",
            f"{self.of('quantity', d)}.asApproximateFloat()",
        )

    def make_string(self, d: int) -> str:
        return self.pick(
            f"({self.of('string', d)} + {self.of('string', d)})",
            f"{self.of('string', d)}.{self.pick('lowerAscii', 'upperAscii', 'trim')}()",
            f"{self.of('string', d)}.substring({self.of('int', d)})",
            f"{self.of('string', d)}.charAt({self.of('int', d)})",
            f"{self.of('string', d)}.replace({self.of('string', d)}, {self.of('string', d)})",
            f"{self.of('strings', d)}.join({self.of('string', d)})",
            f"string({self.pick(self.of('int', d), self.of('double', d), self.of('bool', d))})",
            f'"%s-%d".format([{self.of("string", d)}, {self.of("int", d)}])',
            f"{self.of('string', d)}.find({self.random.choice(PATTERNS)})",
            f"{self.of('optional', d)}.orValue({self.of('string', d)})",
            f"({self.of('bool', d)} ? {self.of('string', d)} : {self.of('string', d)})",
        )

    def make_quantity(self, d: int) -> str:
        return self.pick(
            f"{self.of('quantity', d)}.{self.pick('add', 'sub')}({self.of(self.pick('quantity', 'int'), d)})",
            f"quantity({self.of('string', d)})",
            f'device.capacity["gpu.example.com"].?{self.pick("memory", "none")}.orValue({self.of("quantity", d)})',
            f"({self.of('bool', d)} ? {self.of('quantity', d)} : {self.of('quantity', d)})",
        )

    def make_version(self, d: int) -> str:
        return self.pick(f"semver({self.of('string', d)})", f"semver({self.random.choice(VERSIONS)}, true)")

    def make_list(self, d: int) -> str:
        return self.pick(
            f"[{self.of('int', d)}, {self.of('int', d)}]",
            f"({self.of('list', d)} + {self.of('list', d)})",
            self.loop("map", "list", "int", "int", d),
            self.loop("filter", "list", "int", "bool", d),
            f"{self.of('list', d)}.{self.pick('sort()', 'distinct()', 'reverse()', 'slice(0, 1)')}",
            f"lists.range({self.pick('0', '3', '-1', self.of('int', 0))} % 50)",
            f"[?{self.of('optional', d)}, {self.of('int', d)}]",
            f"{self.of('list', d)}.transformList(i{d}, v{d}, i{d} + v{d})",
            self.bind("list", "list", d),
        )

    def make_strings(self, d: int) -> str:
        return self.pick(
            f"[{self.of('string', d)}, {self.of('string', d)}]",
            f"{self.of('string', d)}.split({self.of('string', d)})",
            self.loop("map", "strings", "string", "string", d),
            self.loop("filter", "strings", "string", "bool", d),
            f"{self.of('string', d)}.findAll({self.random.choice(PATTERNS)})",
        )

    def make_map(self, d: int) -> str:
        return self.pick(
            f"{{{self.of('string', d)}: {self.of('int', d)}}}",
            f'{{"a": {self.of("int", d)}, "b": {self.of("int", d)}}}',
            f'{{?"a": {self.of("optional", d)}}}',
        )

    def make_optional(self, d: int) -> str:
        return self.pick(
            f"optional.of({self.of('int', d)})",
            f"optional.ofNonZeroValue({self.of('int', d)})",
            f"{self.of('list', d)}[?{self.of('int', d)}]",
            f"{self.of('map', d)}[?{self.of('string', d)}]",
            f"{self.of('optional', d)}.or({self.of('optional', d)})",
            f"{self.of('optional', d)}.optMap(o{d}, {self.of('int', d)})",
            f"{self.of('map', d)}.?a",
        )

    def make_dyn(self, d: int) -> str:
        return f"dyn({self.of(self.pick('int', 'string', 'list', 'bool', 'double', 'quantity', 'version', 'map'), d)})"

    def loop(self, macro: str, range_kind: str, variable_kind: str, body_kind: str, depth: int) -> str:
        source = self.of(range_kind, depth)
        name = f"x{depth}"
        self.variables.append((name, variable_kind))
        body = self.of(body_kind, depth)
        self.variables.pop()
        return f"{source}.{macro}({name}, {body})"

    def bind(self, bound_kind: str, body_kind: str, depth: int) -> str:
        value = self.of(bound_kind, depth)
        name = f"b{depth}"
        self.variables.append((name, bound_kind))
        body = self.of(body_kind, depth)
        self.variables.pop()
        return f"cel.bind({name}, {value}, {body})"


def expressions(seed: int, count: int) -> list[str]:
    """Return the first `count` expressions of a seed."""
    grammar = Grammar(seed)
    return [grammar.expression() for _ in range(count)]


TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[A-Za-z_][A-Za-z_0-9]*|[0-9.]+u?|==|!=|<=|>=|&&|\|\||.', re.DOTALL)


def mutations(seed: int, count: int, originals: Sequence[str]) -> list[str]:
    """Return expressions with some tokens replaced, added, removed, exchanged, or copied from another expression."""
    rng = random.Random(seed)
    pool = [token for text in originals for token in TOKEN.findall(text)]
    mutants: list[str] = []
    while len(mutants) < count:
        tokens = TOKEN.findall(rng.choice(originals))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(tokens))
            match rng.randint(0, 4):
                case 0:
                    tokens[at] = rng.choice(pool)
                case 1:
                    tokens.insert(at, rng.choice(pool))
                case 2 if len(tokens) > 1:
                    del tokens[at]
                case 3:
                    other = rng.randrange(len(tokens))
                    tokens[at], tokens[other] = tokens[other], tokens[at]
                case _:
                    donor = TOKEN.findall(rng.choice(originals))
                    start = rng.randrange(len(donor))
                    tokens[at : at + 1] = donor[start : start + rng.randint(1, 6)]
        if text := "".join(tokens).strip():
            mutants.append(text)
    return mutants
