"""YAML of users, with a budget: PyYAML resolves aliases to shared objects, which multiply for each reader of them."""

from __future__ import annotations

from typing import Any

MAX_ENTRIES = 1_000_000
"""Nodes and characters that the aliases of a text may add to it."""
MAX_DEPTH = 100
"""Nested lists and mappings, those of aliases included."""


def load(text: str | bytes, loader: Any = None) -> Any:
    """Return the value of one document, by a safe loader (`yaml.SafeLoader`, or a class below it).

    Raises yaml.YAMLError, with the place, for text that is not YAML, and for text that is nested too deeply or that
    grows too large once its aliases are written out.
    """
    import yaml

    try:
        _check(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.reader.ReaderError, yaml.scanner.ScannerError, yaml.parser.ParserError):
        _check(text, yaml.SafeLoader)  # which reads some texts that libyaml refuses, and has other messages
    return yaml.load(text, Loader=loader or yaml.SafeLoader)  # noqa: S506 - only safe loaders are passed


def _check(text: str | bytes, parser: Any) -> None:
    """Count what the text is with its aliases written out, in one pass over its events."""
    import yaml

    anchors: dict[str, tuple[int, int]] = {}
    """The size and the depth of the node of each anchor."""
    opened: list[tuple[str | None, int, int]] = [(None, 0, 0)]
    """Anchor, size and depth of the nodes that are open; the first one is the text."""
    aliased = 0
    for event in yaml.parse(text, parser):
        size = depth = 0
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, 1, 1))
            if len(opened) > MAX_DEPTH + 1:
                raise _refused("nested too deeply", event)
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size, depth = opened.pop()
            if anchor is not None:
                anchors[anchor] = size, depth
        elif isinstance(event, yaml.ScalarEvent):
            size = 1 + len(event.value)
            if event.anchor is not None:
                anchors[event.anchor] = size, 0
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise _refused("an alias of a node that contains it, or of none", event)
            size, depth = anchors[event.anchor]
            aliased += size
            if aliased > MAX_ENTRIES:
                raise _refused(f"its aliases grow to more than {MAX_ENTRIES} entries and characters", event)
        else:
            continue
        anchor, total, deepest = opened[-1]
        opened[-1] = anchor, total + size, max(deepest, depth + 1)
        if len(opened) + depth > MAX_DEPTH + 1:
            raise _refused("nested too deeply", event)


def _refused(problem: str, event: Any) -> Exception:
    import yaml

    return yaml.constructor.ConstructorError(None, None, problem, event.start_mark)
