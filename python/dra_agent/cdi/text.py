"""CDI files as the loaders of container runtimes decode them: the type of each field decides how its text is read.

Two libraries are in use, which differ in few spellings: that of CDI 0.8 and 1.0, and that of CDI 1.1. A file is valid
if one of them reads it. YAML is read up to the end of the first document; JSON is YAML to both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import inspect

from dra_agent.cdi.model import Spec
from dra_agent.cdi.scalars import Scalar, bool_of, integer_of, resolved, text_of

if TYPE_CHECKING:
    import yaml

Tree = Any
"""Scalar; a list of Tree; or a Mapping_."""
_MAX_VALUES = 200_000
"""Values of a file, those of its aliases included."""
_NEW_FIELDS = frozenset(("netDevices", "schemata", "enableMonitoring"))
"""Of CDI 1.1."""
_OLD_FIELDS = {"enableCMT": inspect.BoolType(), "enableMBM": inspect.BoolType()}
"""Of intelRdt before CDI 1.1; nothing here reads them."""
_NOT_LIKE_YAML = ("\\/", "\\ud", "\\uD", "\x7f")
"""Texts of JSON that YAML refuses."""


class _Mapping(list[tuple[Tree, Tree]]):
    """The keys and values of a mapping, in the order of the file."""


class Reading(NamedTuple):
    """What one of the libraries makes of a file."""

    library: str
    newest: str
    """The newest cdiVersion that it knows."""
    spec: Spec | None
    problem: str
    """Why there is no spec."""


def readings(data: bytes, *, as_json: bool = False) -> tuple[Reading, Reading]:
    """Return what the libraries read, that of CDI 1.1 first.

    `as_json`: the text is probably JSON, which is decoded without a YAML library. Raises ValueError with the line if
    the text is neither.
    """
    tree = (_from_json(data) if as_json else None) or _from_yaml(data)
    return _reading(tree, old=False), _reading(tree, old=True)


def decode(data: bytes, *, as_json: bool = False) -> Spec:
    """Return the spec of the newest library that reads it; raises ValueError with the field or line."""
    found = readings(data, as_json=as_json)
    spec = found[0].spec or found[1].spec
    if spec is None:
        raise ValueError(found[1].problem)
    return spec


def _reading(tree: Tree, *, old: bool) -> Reading:
    spec, problem = None, ""
    try:
        value = _Decoder(old=old).value(tree, _spec_type(), "$")
        spec = msgspec.convert({} if value is None else value, Spec)
    except ValueError as error:
        problem = str(error)
    return Reading("CDI 0.8 and 1.0", "1.0.0", spec, problem) if old else Reading("CDI 1.1", "1.1.0", spec, problem)


@cache
def _spec_type() -> inspect.Type:
    return inspect.type_info(Spec)


class _Decoder:
    """Makes the values that msgspec converts to the types of the model."""

    def __init__(self, *, old: bool) -> None:
        self._old = old
        self._values = 0

    def value(self, tree: Tree, kind: inspect.Type, where: str) -> Any:
        """Return the value; None for null. Raises ValueError with the place."""
        self._values += 1
        if self._values > _MAX_VALUES:
            raise ValueError("too many values, those of its aliases included")
        if isinstance(kind, inspect.UnionType):  # with None
            kind = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
        if isinstance(tree, Scalar):
            return self._scalar(tree, kind, where)
        if isinstance(tree, _Mapping):
            if isinstance(kind, inspect.StructType):
                return self._struct(tree, kind, where)
            if isinstance(kind, inspect.DictType):
                return {
                    key: self._element(value, kind.value_type, f"{where}.{key}")
                    for key, value in self._members(tree, where).items()
                }
        elif isinstance(kind, inspect.VarTupleType):
            return self._list(tree, kind.item_type, where)
        raise ValueError(f"a {'mapping' if isinstance(tree, _Mapping) else 'list'} is at {where}")

    def _scalar(self, scalar: Scalar, kind: inspect.Type, where: str) -> Any:
        readers: dict[type, Callable[..., Any]] = {
            inspect.StrType: text_of,
            inspect.LiteralType: text_of,
            inspect.IntType: integer_of,
            inspect.BoolType: bool_of,
        }
        try:
            value = readers.get(type(kind), resolved)(scalar, old=self._old)
        except ValueError as error:
            raise ValueError(f"{error} - at {where}") from error
        if value is not None and type(kind) not in readers:
            raise ValueError(f"{scalar.text!r} is neither a list nor a mapping - at {where}")
        return value

    def _list(self, items: list[Tree], kind: inspect.Type, where: str) -> list[Any]:
        values = [self._element(item, kind, f"{where}[{index}]") for index, item in enumerate(items)]
        return values if self._old else [value for value in values if value is not None]

    def _element(self, tree: Tree, kind: inspect.Type, where: str) -> Any:
        """Return an entry of a list or mapping: for null the loaders have the zero value, or a null pointer."""
        value = self.value(tree, kind, where)
        if value is not None:
            return value
        if isinstance(kind, inspect.StructType):
            if kind.cls.__name__ != "Device":
                raise ValueError(f"null makes runtimes crash - at {where}")
            return {} if self._old else None
        if isinstance(kind, inspect.IntType):
            return 0 if self._old else None
        return "" if self._old or where.startswith("$.annotations") else None

    def _struct(self, tree: _Mapping, kind: inspect.StructType, where: str) -> dict[str, Any]:
        fields = {field.encode_name: field.type for field in kind.fields}
        if self._old:
            fields = {name: type_ for name, type_ in fields.items() if name not in _NEW_FIELDS}
            if "closID" in fields:
                fields |= _OLD_FIELDS
        found: dict[str, Any] = {}
        members = self._members(tree, where)
        # JSON of Go has sorted keys: of two spellings the later one counts.
        for key in sorted(members) if self._old else members:
            name = key if key in fields or not self._old else _folded(fields).get(_fold(key), key)
            if name not in fields:
                raise ValueError(f"unknown field `{key}` - at {where}")
            value = self.value(members[key], fields[name], f"{where}.{name}")
            if value is not None and name not in _OLD_FIELDS:
                found[name] = {**found.get(name, {}), **value} if isinstance(value, dict) else value
        return found

    def _members(self, tree: _Mapping, where: str) -> dict[str, Tree]:
        """Return the values by key, with those that `<<` merges."""
        found: dict[str, Tree] = {}
        seen: set[object] = set()
        merged: list[Tree] = []
        for key, value in tree:
            if not isinstance(key, Scalar):
                raise ValueError(f"a key is not a text - at {where}")
            if key == _MERGE:
                merged += value if type(value) is list else [value]
                continue
            # Of the new library, keys are equal if their texts are.
            identity = key.text if not self._old else _identity(key)
            if identity in seen:
                raise ValueError(f"key {key.text!r} appears twice - at {where}")
            seen.add(identity)
            name = text_of(key, old=self._old)
            if name is None:
                if self._old:
                    raise ValueError(f"a key is null - at {where}")
                continue
            found[name] = value
        for mapping in merged:
            if not isinstance(mapping, _Mapping):
                raise ValueError(f"'<<' merges mappings only - at {where}")
            for name, value in self._members(mapping, where).items():
                if name in found and self._old:
                    raise ValueError(f"key {name!r} appears twice, once by '<<' - at {where}")
                found.setdefault(name, value)
        return found


_MERGE = Scalar("<<")


def _identity(key: Scalar) -> object:
    value = resolved(key, old=True)
    return type(value), value


def _folded(fields: Mapping[str, Any]) -> dict[str, str]:
    return {_fold(name): name for name in fields}


def _fold(name: str) -> str:
    """Return the form in which Go's JSON decoder compares names of fields."""
    return name.replace("\u017f", "s").replace("\u212a", "k").lower()


def _from_json(data: bytes) -> Tree:
    """Return what JSON has that is YAML too; None for all other text."""
    try:
        text = data.decode("ascii")
        if any(one in text for one in _NOT_LIKE_YAML):
            return None
        value = json.loads(
            text,
            object_pairs_hook=lambda pairs: _Mapping((Scalar(key, ""), _tree(value)) for key, value in pairs),
            parse_int=Scalar,
            parse_float=Scalar,
            parse_constant=Scalar,
        )
    except (ValueError, RecursionError):
        return None
    return _tree(value)


def _tree(value: Any) -> Tree:
    if isinstance(value, Scalar | _Mapping):
        return value
    if isinstance(value, list):
        return [_tree(one) for one in value]
    if isinstance(value, str):
        return Scalar(value, "")
    return Scalar("null" if value is None else "true" if value else "false")


def _from_yaml(data: bytes) -> Tree:
    import yaml  # 1.5 MiB: needed only for YAML specs of other tools

    from dra_agent.cdi.yaml_loader import loader_of

    loader = None
    try:
        loader = loader_of(data)
        node = loader.get_node() if loader.check_node() else None
        if node is None:
            raise ValueError("the file is empty")
        if getattr(loader, "yaml_version", None) not in (None, (1, 1)):
            raise ValueError("it is not YAML 1.1")
        return _tree_of(node, [0])
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise ValueError(f"{where}{getattr(error, 'problem', None) or error}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    finally:
        if loader is not None:
            loader.dispose()


def _tree_of(node: yaml.Node, visited: list[int]) -> Tree:
    import yaml

    visited[0] += 1
    if visited[0] > _MAX_VALUES:
        raise ValueError("too many values, those of its aliases included")
    if isinstance(node, yaml.ScalarNode):
        if any("\ud800" <= character <= "\udfff" for character in node.value):
            raise ValueError(f"line {node.start_mark.line + 1}: an escape denotes no character")
        return Scalar(node.value, node.tag)
    if isinstance(node, yaml.SequenceNode):
        return [_tree_of(child, visited) for child in node.value]
    return _Mapping((_tree_of(key, visited), _tree_of(value, visited)) for key, value in node.value)
