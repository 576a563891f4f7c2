"""The few SVG elements that the picture is made of, as text that is always valid XML."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold even escaped; a damaged name may bring them."""

_WIDTH = {"sans": 0.58, "bold": 0.63, "mono": 0.605}
"""Average width of a character as a part of the font's size, of the widest font that the picture may be shown with."""


def clean(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)


def attribute(text: str) -> str:
    """The text as a quoted attribute value."""
    return quoteattr(clean(text))


def fit(text: str, room: float, size: float, face: str = "sans") -> str:
    """The text, or as much of it as fits into that many pixels and an ellipsis."""
    most = int(room / (size * _WIDTH[face]))
    return text if len(text) <= most else text[: max(most - 1, 0)].rstrip() + "\u2026"


def width(text: str, size: float, face: str = "sans") -> float:
    """About how wide the text is drawn, in pixels."""
    return len(text) * size * _WIDTH[face]


def label(x: float, y: float, text: str, style: str, *, fill: str | None = None, end: bool = False) -> str:
    """One line of text on its base line; `end` makes x its right end."""
    colour = f' style="fill:{fill}"' if fill else ""
    anchor = ' text-anchor="end"' if end else ""
    return f'<text x="{x:g}" y="{y:g}" class="{style}"{anchor}{colour}>{escape(clean(text))}</text>'


def rectangle(
    x: float, y: float, width: float, height: float, *, fill: str, stroke: str | None = None, radius: float = 0
) -> str:
    """A filled rectangle, with an outline where `stroke` is given."""
    outline = f' stroke="{stroke}"' if stroke else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" fill="{fill}"{outline}/>'


def hint(text: str) -> str:
    """What a viewer shows when the pointer rests on the element that this is put in."""
    return f"<title>{escape(clean(text))}</title>"
