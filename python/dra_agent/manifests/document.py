"""YAML documents read into JSON values, with the line of every field.

Scalars follow kubectl's conversion: dates and `12:30` stay text. The meaning of the values is not checked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from dra_agent.errors import UsageError

if TYPE_CHECKING:
    import yaml

_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF)\Z")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*|0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_MAX_INT_CHARS = 100
"""Python reads no decimal number of more than 4,300 digits, and prints none; others are unlimited."""
_INT_64 = range(-(1 << 63), 1 << 64)
"""What kubectl reads as an integer. It reads larger ones as fractions, and what is none of both as text."""
_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[([^\]]*)\]")
_MERGE = "<<"
_MAX_ALIASED = 1_000_000
"""How many nodes a document may have once its aliases are written out, and all documents beyond one for each byte."""
_MAX_ALIASED_TEXT = 16 << 20
"""Characters by which a file may grow once its aliases are written out. In memory they are one object until then."""
_TOO_LARGE = "more than a million entries, those of its aliases included: give the objects as JSON, or in several files"
_MAX_DEPTH = 100
"""Maximum nesting of lists and mappings; the API's objects stay below 20."""
_TOO_DEEP = f"more than {_MAX_DEPTH} nested lists and mappings"
_AS_JSON = "objects of a cluster are read if they are exported as JSON, the parameters of any driver included"


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document: its value, and the line of each field."""

    value: Any
    _node: yaml.Node | None

    def line_of(self, field: str) -> int:
        """The line, from 1, of `spec.devices.requests[0].name`; of the nearest parent where it is missing."""
        return _line(self._node, field)

    def items(self, field: str) -> list[Document]:
        """The entries of a list as separate documents."""
        node = _child(self._node, field)
        children = node[1].value if node is not None else []
        return [Document(value, child) for value, child in zip(self.value[field], children, strict=True)]


def read_documents(text: str, file: str) -> Iterator[Document]:
    """The documents of a YAML (or JSON) text, empty ones left out.

    Raises UsageError, with file and line, for text that is not YAML and for a key that is there twice.
    """
    import yaml

    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader = None
    reader = _Reader(file, len(text))
    try:
        _refuse_large(yaml.parse(text, kind), file)
        loader = kind(text)
        while loader.check_node():
            node: yaml.Node | None = loader.get_node()
            value = reader.document(node) if node is not None else None
            if value is not None:
                yield Document(value, node)
    except UnicodeEncodeError as error:
        raise UsageError("not UTF-8 text", where=f"{file}:{text.count(chr(10), 0, error.start) + 1}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _unreadable(error.problem or str(error), file, mark.line + 1 if mark else None) from error
    except yaml.YAMLError as error:
        raise _unreadable(str(error).splitlines()[0], file, None) from error
    finally:
        if loader is not None:
            loader.dispose()


def _refuse_large(events: Iterable[Any], file: str) -> None:
    """Parses events first: PyYAML builds nodes recursively and in memory, and libyaml has no limit."""
    import yaml

    depth = entries = 0
    for event in events:
        entries = 0 if isinstance(event, yaml.DocumentStartEvent) else entries + isinstance(event, yaml.NodeEvent)
        if entries > 2 * _MAX_ALIASED:  # keys are events, too
            raise _unreadable(_TOO_LARGE, file, event.start_mark.line + 1 if event.start_mark else None)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                mark = event.start_mark
                raise _unreadable(_TOO_DEEP, file, mark.line + 1 if mark else None, _AS_JSON)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _unreadable(message: str, file: str, line: int | None, hint: str | None = None) -> UsageError:
    return UsageError(f"not YAML: {message}", where=f"{file}:{line}" if line else file, hint=hint)


class _Reader:
    """Converts nodes to values. PyYAML's constructor would read `0000:3b:00.0` and dates as numbers and times."""

    def __init__(self, file: str, length: int) -> None:
        self._file = file
        self._visited = 0
        self._nodes = length + _MAX_ALIASED
        self._text = length + _MAX_ALIASED_TEXT

    def document(self, node: yaml.Node) -> Any:
        """Return the value of one document."""
        self._nodes -= self._visited
        self._visited = 0
        return self.value(node, 0)

    def value(self, node: yaml.Node, depth: int) -> Any:
        import yaml

        self._visited += 1
        if depth > _MAX_DEPTH:  # through aliases, the stream of events being shallow
            raise self._error(node, _TOO_DEEP)
        if self._visited > min(_MAX_ALIASED, self._nodes):
            raise self._error(node, _TOO_LARGE)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, depth + 1) for child in node.value]
        return self._mapping(node, depth + 1)

    def _mapping(self, node: yaml.Node, depth: int) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key, str):
                raise self._error(key_node, "a key must be text")
            self._count_text(key_node)
            value = self.value(value_node, depth)
            if key == _MERGE and not key_node.style:
                for mapping in value if isinstance(value, list) else [value]:
                    if not isinstance(mapping, dict):
                        raise self._error(key_node, "<< merges mappings only")
                    merged = {**mapping, **merged}
            elif key in own:
                raise self._error(key_node, f"the key {key!r} is there twice")
            else:
                own[key] = value
        return {**merged, **own}

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text: str = node.value
        self._count_text(node)
        if node.style or node.tag == "tag:yaml.org,2002:binary":
            return text
        if _NULL.match(text):
            return None
        if _BOOL.match(text):
            return text.lower() in ("true", "yes", "on")
        if _INT.match(text) and len(text) <= _MAX_INT_CHARS and (number := int(text, 0)) in _INT_64:
            return number
        if _FLOAT.match(text) and isfinite(fraction := float(text)):
            return fraction
        return text

    def _count_text(self, node: yaml.Node) -> None:
        self._text -= len(node.value)
        if self._text < 0:
            raise self._error(node, f"its aliases grow to more than {_MAX_ALIASED_TEXT >> 20} MiB")

    def _error(self, node: yaml.Node, message: str) -> UsageError:
        return _unreadable(message, self._file, node.start_mark.line + 1)


def _steps(field: str) -> Iterator[str]:
    for match in _STEP.finditer(field):
        yield match[1] if match[1] is not None else match[2]


def _child(node: yaml.Node | None, step: str) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the node of a step (a key, or a list's entry) and the node of its value."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            if key_node.value == step:
                return key_node, value_node
    elif isinstance(node, yaml.SequenceNode) and step.isdigit() and int(step) < len(node.value):
        entry = node.value[int(step)]
        return entry, entry
    return None


def _line(node: yaml.Node | None, field: str) -> int:
    line: int = node.start_mark.line + 1 if node is not None else 1
    for step in _steps(field):
        found = _child(node, step)
        if found is None:
            break
        line = found[0].start_mark.line + 1
        node = found[1]
    return line
