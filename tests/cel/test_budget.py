"""Expressions of a few hundred bytes that once exhausted the memory, the stack, or took minutes.

Each is evaluated in a separate process with a small address space: a defect ends that process and not the tests.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
import time

import pytest

from dra_agent._native import CelError, CelExpression

DEVICE = b'{"name": "gpu-0"}'
ADDRESS_SPACE_BYTES = 1536 << 20

PROGRAM = """
import sys
from dra_agent._native import CelError, CelExpression
try:
    print(CelExpression.selector(sys.stdin.read()).matches("d.example.com", b'{"name": "gpu-0"}'))
except CelError as error:
    print(error)
"""


def evaluate_in_subprocess(expression: str) -> str:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=expression,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=limit,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout.strip()


def nested(levels: int, make: str, last: str) -> str:
    """Return nested bindings x1, x2, ...: each is `make` of the previous one."""
    expression = last.replace("X", f"x{levels}")
    for level in range(levels, 0, -1):
        expression = f"cel.bind(x{level}, {make.replace('X', f'x{level - 1}')}, {expression})"
    return expression


FORMATTED = nested(6, "f.format([X, X, X, X, X, X, X, X])", "X")
STRINGS = f'cel.bind(f, "{"%s" * 8}", lists.range(1000).map(i, cel.bind(x0, "0123456789", {FORMATTED}))).size() == 1000'
DOUBLED = nested(40, "[X, X]", "X == X")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param(STRINGS, "exceeds the cost limit", id="strings within strings"),
        pytest.param(
            'cel.bind(s, "' + "a" * 100 + '".replace("", "' + "b" * 1000 + '").replace("b", "' + "c" * 400 + '"), '
            "lists.range(100).all(i, (s + s).size() > 0))",
            "exceeds the cost limit",
            id="replaced and joined",
        ),
        pytest.param(
            f"cel.bind(x0, [1, 1], {nested(40, '[X, X]', 'X.flatten(1000) == X')})",
            "exceeds the cost limit",
            id="flattened",
        ),
        pytest.param(
            f'cel.bind(x0, [1, 1], {nested(40, "[X, X]", """"%s".format([X]) == "" """)})',
            "exceeds the cost limit",
            id="written",
        ),
        pytest.param(
            "cel.bind(x, dyn([]), size(x + [x]) > 0 && x == x)", "levels deep", id="a list that contains itself"
        ),
        pytest.param(
            'cel.bind(x, dyn([]), size(x + [x]) > 0 && "%s".format([x]) == "x")',
            "levels deep",
            id="a list that contains itself, written",
        ),
        pytest.param(
            "optional.of(1)" + ".optMap(x, x)" * 24 + ".hasValue()", "more than 50000 parts", id="macros that copy"
        ),
        pytest.param(
            f"cel.bind(x0, 1, {nested(40, '{X: X}', 'X == X')})", "the type of this value is too large", id="types"
        ),
        pytest.param("lists.range(30000).distinct().size() == 1", "exceeds the cost limit", id="distinct"),
        pytest.param(
            " || ".join(rf'"x".matches("\\pL{{{900 + number}}}$")' for number in range(30)),
            "MiB",
            id="many regular expressions",
        ),
    ],
)
def test_expression_that_exceeds_a_limit_is_an_error(expression: str, expected: str) -> None:
    assert expected in evaluate_in_subprocess(expression)


def test_nested_branches_are_planned_once() -> None:
    key = "0"
    for _ in range(24):
        key = f"(true ? [0] : [1])[{key}]"
    assert evaluate_in_subprocess(f"{key} == 0") == "True"


def test_rendering_a_shared_value_is_limited_to_64_mib() -> None:
    expression = CelExpression(f"cel.bind(x0, [1, 1], {nested(40, '[X, X]', 'X')})")
    with pytest.raises(CelError, match="more than 64 MiB"):
        expression.evaluate("d.example.com", DEVICE)


def test_values_that_contain_themselves_are_freed() -> None:
    expression = CelExpression.selector(
        "cel.bind(x, dyn([]), lists.range(5000).all(i, size(x + [[x, dyn(i)]]) > 0) && size(x) == 5000)"
    )
    assert expression.matches("d.example.com", DEVICE)
    for _ in range(20):
        expression.matches("d.example.com", DEVICE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        expression.matches("d.example.com", DEVICE)
    # A leak would be about 200 MB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize("expression", ["(" * 300 + "true" + ")" * 300, "[" * 300 + "]" * 300 + " == []"])
def test_the_error_of_a_deep_expression_is_one_sentence(expression: str) -> None:
    with pytest.raises(CelError, match=r"^1:251: more than 250 nested expressions$"):
        CelExpression.selector(expression)


def test_other_threads_run_while_an_expression_is_evaluated() -> None:
    expression = CelExpression.selector(f"cel.bind(x0, [1, 1], {nested(40, '[X, X]', 'X == X')})")
    finished = threading.Event()

    def evaluate() -> None:
        try:
            with pytest.raises(CelError, match="deadline"):
                expression.matches("d.example.com", DEVICE)
        finally:
            finished.set()

    thread = threading.Thread(target=evaluate)
    thread.start()
    iterations = 0
    while not finished.is_set():
        iterations += 1
        time.sleep(0.01)
    thread.join()
    # The evaluation takes ten seconds; a thread that held the GIL would allow two iterations.
    assert iterations > 10
