"""HTML whose text is always escaped: a string becomes text, only `element` makes markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from dra_agent.printable import printable

MAX_TEXT = 400
"""Characters of one text; names are at most 253."""
_VOID = frozenset({"img", "link", "meta"})


class Html(str):
    """Markup."""

    __slots__ = ()


Content = str | int | None | Iterable["Content"]
"""A string that is not `Html` is text. None is nothing."""


def element(name: str, /, *content: Content, **attributes: str | None) -> Html:
    """Return an element. An underscore in the name of an attribute is a hyphen; `class_` is `class`; None omits it."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{_joined(content)}</{name}>")


def text(value: str) -> str:
    r"""Return text for an element or an attribute; control and bidirectional characters become visible: `\u202e`.

    They could change the order in which a browser shows the text around them (CVE-2021-42574).
    """
    return escape(printable(value, line=True, longest=MAX_TEXT))


def table(identity: str, caption: str, columns: Sequence[str], rows: Iterable[Sequence[Content]]) -> Html:
    """Return a table whose first column names its rows.

    Roles are stated, because a narrow window shows each row as a block, and browsers drop the roles of such elements.
    """
    head = element("tr", [element("th", column, scope="col", role="columnheader") for column in columns], role="row")
    body = [
        element(
            "tr",
            element("th", row[0], scope="row", role="rowheader"),
            [
                element("td", _cell(cell), role="cell", data_label=column)
                for column, cell in zip(columns[1:], row[1:], strict=True)
            ],
            role="row",
        )
        for row in rows
    ]
    return element(
        "table",
        element("caption", caption),
        element("thead", head, role="rowgroup"),
        element("tbody", body, role="rowgroup"),
        role="table",
        id=identity,
    )


def _cell(content: Content) -> Content:
    return element("span", "-", class_="unknown") if content in (None, "") else content


def _joined(content: Content) -> str:
    if content is None:
        return ""
    if isinstance(content, Html):
        return content
    if isinstance(content, str | int):
        return text(str(content))
    return "".join(map(_joined, content))
