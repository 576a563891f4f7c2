"""What is counted in Rust crates: sizes, and circles of files. A scanner of tokens is enough for both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from measures.graph import circles
from measures.python_code import Size

# Lifetimes have no second quote, so they are not characters.
_OPAQUE = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | b?r(\#*)".*?"\1 | b?"(?:\\.|[^"\\])*" | b?'(?:\\[^\n]+?|[^'\\\n])'""",
    re.DOTALL | re.VERBOSE,
)
_FUNCTION = re.compile(r"\bfn\s+\w+")
_USE = re.compile(r"\buse\s+([^;]+);")
_PATH = re.compile(r"\b(?:crate|self|super)(?:\s*::\s*\w+)+")


@dataclass(frozen=True)
class Crate:
    """The sources of one crate, without its tests and examples."""

    name: str
    folder: Path

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """The text of each file by its module, such as `search::values`; the root is `crate`."""
        return {self._module(path): path.read_text() for path in sorted((self.folder / "src").rglob("*.rs"))}

    def _module(self, path: Path) -> str:
        parts = list(path.relative_to(self.folder / "src").with_suffix("").parts)
        return "::".join(["crate", *(parts[:-1] if parts[-1] in {"lib", "main", "mod"} else parts)])


def crates(folder: Path) -> list[Crate]:
    """Return the crates in a folder and its sub-folders, by name."""
    found = [Crate(path.parent.name, path.parent) for path in folder.rglob("Cargo.toml")]
    return sorted(found, key=lambda crate: crate.name)


def code(text: str) -> str:
    """Return the text with spaces in place of comments, strings and characters; lines stay where they are."""
    return _OPAQUE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def size(crate: Crate) -> Size:
    """Return the size of a crate; a statement ends with a semicolon."""
    codes = [code(text) for text in crate.texts.values()]
    return Size(
        sum(len(text.splitlines()) for text in crate.texts.values()),
        sum(text.count(";") for text in codes),
        [lines for text in codes for lines in _functions(text)],
    )


def _functions(text: str) -> Iterator[int]:
    """Yield the lines of each function with a body."""
    for match in _FUNCTION.finditer(text):
        depth = 0
        for at in range(match.end(), len(text)):
            depth += (text[at] in "{([") - (text[at] in "})]")
            if text[at] == ";" and depth == 0:
                break
            if text[at] == "}" and depth == 0:
                yield text.count("\n", match.start(), at) + 1
                break


def file_circles(crate: Crate) -> list[list[str]]:
    """Return the files that refer to each other, the largest circle first.

    A file refers to the file that defines what it names: re-exports are followed. The root of the crate lists all
    files, so it is not counted.
    """
    files = {module: _File.read(module, code(text)) for module, text in crate.texts.items()}
    graph = {
        module: {target for path in file.paths for target in _resolve(files, module, path)} - {module, "crate"}
        for module, file in files.items()
        if module != "crate"
    }
    return circles(graph)


@dataclass(frozen=True)
class _File:
    """The paths in one file."""

    paths: Sequence[Sequence[str]]
    imported: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What `use` brings into the module, by name."""

    @classmethod
    def read(cls, module: str, text: str) -> _File:
        uses = [path for match in _USE.finditer(text) for path in _paths_of_use(match[1])]
        others = [re.sub(r"\s", "", match[0]).split("::") for match in _PATH.finditer(_USE.sub("", text))]
        return cls([*(path for path, _ in uses), *others], {name: path for path, name in uses})


def _paths_of_use(tree: str) -> Iterator[tuple[list[str], str]]:
    """Yield the paths of `a::{b, c::d as e}`, and the name that each gets."""
    tree = re.sub(r"\s+", " ", tree).strip()
    head, brace, rest = tree.partition("{")
    if brace:
        for part in _parts(rest[: rest.rindex("}")]):
            yield from _paths_of_use(head + part)
        return
    path, _, name = tree.partition(" as ")
    segments = [segment.strip() for segment in path.split("::")]
    if segments[-1] == "self":
        segments.pop()
    yield segments, name.strip() or segments[-1]


def _parts(text: str) -> Iterator[str]:
    """Yield what commas outside braces separate."""
    depth, start = 0, 0
    for at, character in enumerate(f"{text},"):
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            if part := text[start:at].strip():
                yield part
            start = at + 1


def _resolve(
    files: Mapping[str, _File], module: str, path: Sequence[str], seen: frozenset[tuple[str, str]] = frozenset()
) -> set[str]:
    """Return the module in which the path of a module ends; none for a path to another crate."""
    rest = list(path)
    match rest[0]:
        case "crate":
            base = rest.pop(0)
        case "self":
            base = module
            rest.pop(0)
        case "super":
            base = module
            while rest and rest[0] == "super":
                base = base.rpartition("::")[0] or base
                rest.pop(0)
        case first if f"{module}::{first}" in files:
            base = module
        case _:
            return set()
    while rest and f"{base}::{rest[0]}" in files:
        base = f"{base}::{rest.pop(0)}"
    if rest and base in files and rest[0] in files[base].imported and (base, rest[0]) not in seen:
        through = _resolve(files, base, files[base].imported[rest[0]], seen | {(base, rest[0])})
        return through or {base}
    return {base} & files.keys()
