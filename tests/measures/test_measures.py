"""What `make measures` counts, on small inputs with a known answer. The numbers of the project are no test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from measures import __main__ as program
from measures import library_names, python_code, rust_code, walks
from measures.graph import circles
from measures.python_code import Module


def package(folder: Path, files: Mapping[str, str]) -> list[Module]:
    """Write a package `part` and return its modules."""
    write(folder / "part", {"__init__.py": "", **files})
    return python_code.modules(folder, "part")


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_circles_of_a_graph_are_its_largest_groups() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a", "f"}}
    assert circles(graph) == [["a", "b", "c"], ["d", "e"]]


def test_lines_statements_and_functions_of_python(tmp_path: Path) -> None:
    long = "async def long():\n" + "    x = 1\n" * 50
    of = package(tmp_path, {"a.py": '"""Text."""\n\ndef one():\n    return 1\n', "b.py": f"@cache\n{long}"})
    size = python_code.size(of)
    assert (size.lines, size.statements) == (4 + 52, 3 + 51)
    assert sorted(size.functions) == [2, 51]
    assert (size.median_function, size.long_functions, size.statements_per_line) == (26.5, 1, round(54 / 56, 3))


def test_loose_modules_are_those_in_no_folder(tmp_path: Path) -> None:
    of = package(tmp_path, {"a.py": "", "__main__.py": "", "inner/__init__.py": "", "inner/b.py": ""})
    assert python_code.packages(tmp_path) == ["part"]
    assert python_code.loose_modules(of) == ["part.a"]


def test_circles_of_imports_are_found_in_each_folder(tmp_path: Path) -> None:
    of = package(
        tmp_path,
        {
            "a.py": "def late():\n    from part.inner import b",
            "inner/__init__.py": "",
            "inner/b.py": "from . import c",
            "inner/c.py": "from ..alone import NAME\nfrom part.a import late",
            "alone.py": "import json",
            "types/__init__.py": "from part.types.kind import Kind",
            "types/kind.py": "if TYPE_CHECKING:\n    from part.types import other",
            "types/other.py": "from part import types",
        },
    )
    assert python_code.folder_circles(of) == [
        ["part.a", "part.inner"],
        ["part.types.__init__", "part.types.kind", "part.types.other"],
    ]


def test_constructor_parameters_that_are_callables(tmp_path: Path) -> None:
    of = package(
        tmp_path,
        {
            "aliases.py": "Poll = Callable[[], int]\nCount = dict[str, int]",
            "a.py": """
from part.aliases import Count, Poll as Ask
class A:
    def __init__(self, poll: Ask, ended: asyncio.Event, done: 'Callable[[], None] | None', count: Count, *,
                 stop: Awaitable[None], all: list[Callable[[], None]]) -> None: ...
    def call(self, other: Poll) -> None: ...
@dataclass(frozen=True)
class B:
    wait: typing.Optional[Callable[[], None]]
    size: int
class C(NamedTuple):
    run: Ask
class D:
    field: Callable[[], None]
""",
        },
    )
    assert python_code.callable_parameters(of) == [
        *("part.a.A.poll", "part.a.A.done", "part.a.A.stop", "part.a.B.wait", "part.a.C.run")
    ]


def test_protocols_with_one_method(tmp_path: Path) -> None:
    of = package(
        tmp_path,
        {
            "a.py": '''
class One(Protocol[T]):
    """Text."""
    async def run(self) -> None: ...
class Two(typing.Protocol):
    def a(self) -> None: ...
    def b(self) -> None: ...
class WithValue(Protocol):
    value: int
    def a(self) -> None: ...
class NotOne:
    def run(self) -> None: ...
''',
        },
    )
    assert python_code.one_method_protocols(of) == ["part.a.One"]


@pytest.mark.parametrize(
    "line",
    [
        "import grpc._server",
        "from grpc import _server",
        "from grpc._server import Server",
        "grpc.aio._server.stop()",
        "parser._actions",
        "self._option_string_actions",
        "getattr(context, '_state')",
        "importlib.import_module('grpc._server')",
        "sys.modules['ctypes.util'] = fake",
        "del sys.modules['ctypes.util']",
        "sys.modules.pop('ctypes.util')",
    ],
)
def test_a_private_name_of_a_library_is_found(line: str, tmp_path: Path) -> None:
    of = package(tmp_path, {"a.py": f"import grpc, sys\n\n{line}\n"})
    assert [use.partition(":")[2].partition(":")[0] for use in library_names.private_names(of)] == ["3"]


@pytest.mark.parametrize(
    "line",
    [
        "from __future__ import annotations",
        "from part import _native",
        "from . import _inner",
        "self._own",
        "other._own",
        "other._method()",
        "os._exit(0)",
        "one._replace(a=1)",
        "structure._fields_",
        "grpc.__version__",
        "known = 'json' in sys.modules",
        "module = sys.modules['json']",
        "sys.modules.get('json')",
    ],
)
def test_own_public_and_documented_names_are_allowed(line: str, tmp_path: Path) -> None:
    own = "class A:\n    def _method(self):\n        self._own = 1\n"
    of = package(tmp_path, {"a.py": f"{line}\n", "b.py": own, "made_pb2.py": "descriptor._serialized_start = 1"})
    assert library_names.private_names(of) == []


def crate(folder: Path, files: Mapping[str, str]) -> rust_code.Crate:
    write(folder / "group" / "sample", {"Cargo.toml": "", **{f"src/{name}": text for name, text in files.items()}})
    (found,) = rust_code.crates(folder)
    return found


def test_lines_statements_and_functions_of_rust(tmp_path: Path) -> None:
    text = """// fn comment() { ; }
fn one<'a>(x: &'a str) -> [u8; 2] {
    let brace = '{'; let raw = r#"";}"#;
    "fn { ; }\\"";
}
trait T { fn without_body(&self) -> [u8; 3]; }
"""
    size = rust_code.size(crate(tmp_path, {"lib.rs": text}))
    # Two semicolons are those of array types.
    assert (size.lines, size.statements, list(size.functions)) == (6, 3 + 3, [4])


def test_circles_of_rust_files_follow_re_exports(tmp_path: Path) -> None:
    found = crate(
        tmp_path,
        {
            "lib.rs": "mod a; mod b; mod c; mod tree; pub use b::{Second, Other as Renamed};",
            "a.rs": "use crate::Second;\nuse std::fmt;",
            "b.rs": "fn f() { crate::a::first(); }",
            "c.rs": "use crate::{a::first, Renamed};\n// use crate::tree::Leaf;",
            "tree/mod.rs": "mod leaf; mod twig; pub use leaf::Leaf;",
            "tree/leaf.rs": "use super::twig::{self, Twig};",
            "tree/twig.rs": "use super::Leaf;",
        },
    )
    assert rust_code.file_circles(found) == [["crate::a", "crate::b"], ["crate::tree::leaf", "crate::tree::twig"]]


def test_a_walk_has_what_is_in_all_runs() -> None:
    runs = [
        ["a.py:f 3", "b.py:C.m 7", "noise.py:g 30"],
        ["b.py:C.m 7", "a.py:f.<locals>.<genexpr> 4"],
    ]
    assert walks.common(runs) == walks.Walk(frozenset({"a.py", "b.py"}), 7)


def test_the_table_has_the_numbers_of_both() -> None:
    measures = [program.Measure("lines", 87644, "lower"), program.Measure("new", 0.5, "0")]
    assert program.table(measures, {"lines": 90000, "gone": 2}, "abc").splitlines() == [
        "measure     now     abc  target",
        "lines    87,644  90,000  lower",
        "new         0.5       -  0",
        "gone          -       2",
    ]


def test_what_cannot_be_measured_is_reported_and_the_rest_is_measured() -> None:
    def failing() -> Iterator[program.Measure]:
        yield program.Measure("partial", 1, "0")
        raise walks.NotMeasuredError("the test failed")

    def working() -> Iterator[program.Measure]:
        yield program.Measure("whole", 2, "0")

    measures, problems = program.measure([failing, working])
    assert [one.name for one in measures] == ["partial", "whole"]
    assert problems == ["failing: the test failed"]
