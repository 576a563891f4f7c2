"""A YAML loader that leaves scalars as they are written, and scans as libyaml's port in Go does."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import yaml

_MAX_DEPTH = 100
"""Levels; the specification has 6."""


def loader_of(data: bytes) -> yaml.SafeLoader:
    """Return a loader of a text; raises yaml.YAMLError. It is to be disposed of."""
    return _loader()(data)


@cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class TextLoader(yaml.SafeLoader):
        """Composes nodes whose tag is None for plain scalars, "" for other ones without a tag, and else the tag."""

        # Go's has no escape for it: it is one in YAML 1.2 and JSON.
        ESCAPE_REPLACEMENTS: ClassVar[dict[str, str]] = {  # type: ignore[misc]
            key: text for key, text in yaml.SafeLoader.ESCAPE_REPLACEMENTS.items() if key != "/"
        }

        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            """Return a node; raises ValueError for nesting that no spec has: PyYAML composes recursively."""
            self.depth += 1
            if self.depth > _MAX_DEPTH:
                raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            """Return the tag of a node without one."""
            if kind is yaml.ScalarNode:
                return None if implicit[0] else ""
            return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]

        def scan_to_next_token(self) -> None:
            """Skip spaces, line breaks and comments; tabs too, except where an indentation may begin."""
            if self.index == 0 and self.peek() == "\ufeff":
                self.forward()
            while True:
                while self.peek() == " " or (self.peek() == "\t" and (self.flow_level or not self.allow_simple_key)):
                    self.forward()
                if self.peek() == "#":
                    while self.peek() not in "\0\r\n\x85\u2028\u2029":
                        self.forward()
                if not self.scan_line_break():  # type: ignore[no-untyped-call]
                    return
                if not self.flow_level:
                    self.allow_simple_key = True

    return TextLoader
