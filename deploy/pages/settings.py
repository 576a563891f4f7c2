"""Every key of the configuration, as the page docs/reference/configuration-keys.md.

Keys, types, ranges and defaults are those of the structs that decode the file. The descriptions are the help of the
flags and the docstrings of the fields.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from deploy.pages.commands import GENERATED

from dra_agent.agent.config import CONFIG_VARIABLE, DEFAULT_FILE, HELP, PREFIX, Config
from dra_agent.agent.config_keys import is_reloadable

Struct = type[msgspec.Struct]
HEAD = f"""\
{GENERATED}
# Configuration keys

This page lists every key of the configuration file, generated from the structs that decode it.
[Configuration](configuration.md) describes precedence, reload and errors. Flags and variables exist for the keys of the
first table only; `--config` or `{CONFIG_VARIABLE}` names the file (default: `{DEFAULT_FILE}`). A change of a key with
`reload` applies to the running agent, one with `restart` at its next start.

"""


def page() -> str:
    """Return docs/reference/configuration-keys.md.

    Raises:
        ValueError: A key has no description.
    """
    return HEAD + "\n\n".join(_sections(Config, "")) + "\n"


def _sections(struct: Struct, path: str) -> Iterator[str]:
    hints = get_type_hints(struct, include_extras=True)
    meanings = {**_docstrings(struct), **(HELP if struct is Config else {})}
    rows: list[str] = []
    below: list[tuple[Struct, str]] = []
    for field in msgspec.structs.fields(struct):
        if (nested := _nested(hints[field.name])) is not None:
            child, many = nested
            name = f"{path}.{field.name}".lstrip(".")
            below.append((child, f"[[{name}]]" if many else f"[{name}]"))
            if not many or field.name not in meanings:
                continue
        if not meanings.get(field.name):
            raise ValueError(f"{struct.__name__}.{field.name} has no docstring")
        rows.append(_row(struct, field, hints[field.name], meanings[field.name], path))
    if struct is Config:
        head = [
            "## Top level",
            "| key | flag, variable | value | default | change | meaning |",
            "|---|---|---|---|---|---|",
        ]
    else:
        head = [f"## `{_header(path)}`", "| key | value | default | change | meaning |", "|---|---|---|---|---|"]
    title, *table = head
    summary = inspect.getdoc(struct) or "" if struct is not Config else ""
    parts = [title, *([_prose(summary)] if summary and not summary.startswith("The section") else [])]
    yield "\n\n".join([*parts, "\n".join((*table, *rows))])
    for child, name in below:
        yield from _sections(child, name.strip("[]") + ("[]" if name.startswith("[[") else ""))


def _header(path: str) -> str:
    """Return the path as the header of a TOML table."""
    return f"[[{path.removesuffix('[]')}]]" if path.endswith("[]") else f"[{path}]"


def _row(struct: Struct, field: Any, hint: Any, meaning: str, path: str) -> str:
    cells = [f"`{field.name}`"]
    if struct is Config:
        cells.append(f"`--{field.name.replace('_', '-')}`, `{PREFIX}{field.name.upper()}`")
    key = f"{path.replace('[]', '')}.{field.name}".lstrip(".")
    change = "reload" if is_reloadable(key) else "restart"
    cells += [_kind(hint), _default(field), change, _prose(meaning)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _nested(hint: Any) -> tuple[Struct, bool] | None:
    """Return the struct of a section, and whether it is a list of tables."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint, False
    if get_origin(hint) is tuple:
        member = get_args(hint)[0]
        if isinstance(member, type) and issubclass(member, msgspec.Struct):
            return member, True
    return None


def _kind(hint: Any) -> str:
    origin, members = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _kind(members[0]) + _range([member for member in members[1:] if isinstance(member, msgspec.Meta)])
    if origin is Literal:
        return ", ".join(f"`{json.dumps(member)}`" for member in members)
    if origin in (Union, types.UnionType):
        return " or ".join(_kind(member) for member in members if member is not type(None))
    if origin is tuple:
        return "tables" if _nested(hint) else f"list of {_kind(members[0])}"
    if origin is dict:
        return f"table of {_kind(members[1])}"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "{ " + ", ".join(f"{field.name} = …" for field in msgspec.structs.fields(hint)) + " }"
    return {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path"}[hint]


def _range(limits: list[msgspec.Meta]) -> str:
    words = [
        f"{word} {limit:g}"
        for meta in limits
        for word, limit in (("&gt;", meta.gt), ("≥", meta.ge), ("&lt;", meta.lt), ("≤", meta.le))
        if limit is not None
    ]
    return f", {', '.join(words)}" if words else ""


def _default(field: Any) -> str:
    if field.default is msgspec.NODEFAULT:
        return "required" if field.default_factory is msgspec.NODEFAULT else "none"
    if field.default is None or field.default == "" or field.default == ():
        return "none"
    return _value(field.default)


def _value(value: Any) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        return ", ".join(f"`{getattr(member, 'key', member)}`" for member in value)
    if isinstance(value, Path):
        return f"`{json.dumps(str(value))}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{json.dumps(value)}`"


def _docstrings(struct: Struct) -> dict[str, str]:
    """Return the strings below the fields of a struct, which Python does not keep."""
    body = ast.parse(textwrap.dedent(inspect.getsource(struct))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                found[name] = str(text)
    return found


def _prose(text: str) -> str:
    plain = " ".join(text.split()).replace("<", "&lt;").replace("*", "\\*")
    if plain.split(" ", 1)[0].endswith(":"):  # names a value
        return plain
    return plain[:1].upper() + plain[1:]
