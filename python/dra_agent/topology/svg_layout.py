"""The position of each box of the picture. It defines sizes and nesting, not colors or SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from xml.sax.saxutils import escape, quoteattr

from dra_agent.printable import printable
from dra_agent.topology.display_tree import Leaf, TreeNode

CARD_WIDTH, CARD_HEIGHT = 240, 84
HOLDER_HEIGHT = 22
"""The strip of a card with the holder of the device, in a picture with holders."""
FUNCTIONS_HEIGHT = 18
"""The row of squares, one per virtual function."""
GAP = 10
NODE_GAP = 30
PADDING = {"numa": 16, "root": 12, "switch": 10}
HEADING = {"numa": 46, "root": 26, "switch": 26}
EMPTY_NODE_WIDTH = 300


@dataclass(slots=True)
class Box:
    """A rectangle with its corner relative to the picture, around a device or around other boxes."""

    width: float
    height: float
    of: TreeNode | Leaf
    inner: list[Box] = field(default_factory=list)
    x: float = 0
    y: float = 0

    def move(self, x: float, y: float) -> None:
        """Put the corner there, and all that is inside along with it."""
        dx, dy = x - self.x, y - self.y
        for box in self.walk():
            box.x, box.y = box.x + dx, box.y + dy

    def walk(self) -> Iterator[Box]:
        """The box itself and all inside it, outer before inner."""
        yield self
        for box in self.inner:
            yield from box.walk()


def arrange(branches: Sequence[TreeNode], *, with_holders: bool) -> list[Box]:
    """Boxes for the NUMA nodes of a host, in the arrangement that wastes least and is nearest to a screen's shape."""
    best: tuple[float, list[Box]] | None = None
    for node_columns, columns, in_switch in product((1, 2, 4), range(1, 7), range(1, 5)):
        if node_columns > len(branches):
            continue
        boxes = [_box(branch, columns, in_switch, with_holders) for branch in branches]
        _pair(boxes, node_columns)
        width, height = extent(boxes)
        cards = sum(box.width * box.height for outer in boxes for box in outer.walk() if isinstance(box.of, Leaf))
        # 1.6 is a laptop's screen. Too tall is scrolled, but too wide cannot be read.
        shape = width / height / 1.6
        cost = max(shape, 1 / shape) + (shape > 1.3) * 0.3 + 2 * (1 - cards / (width * height))
        if best is None or cost < best[0]:
            best = (cost, boxes)
    return best[1] if best else []


def extent(boxes: Sequence[Box]) -> tuple[float, float]:
    """How far right and down the boxes reach."""
    return max((box.x + box.width for box in boxes), default=0), max((box.y + box.height for box in boxes), default=0)


def _box(of: TreeNode | Leaf, columns: int, in_switch: int, with_holders: bool) -> Box:
    """The box of a place with its content; `columns` and `in_switch` are the maximum cards in a row."""
    if isinstance(of, Leaf):
        extra = (HOLDER_HEIGHT if with_holders else 0) + (FUNCTIONS_HEIGHT if of.functions else 0)
        return Box(CARD_WIDTH, CARD_HEIGHT + extra, of)
    parts: list[TreeNode | Leaf] = [*of.leaves, *of.branches]
    inner = [_box(part, columns, in_switch, with_holders) for part in parts]
    padding, heading = PADDING[of.level], HEADING[of.level]
    room = float(columns * (CARD_WIDTH + GAP) + 2 * sum(PADDING.values()))
    if of.level == "switch":
        room = in_switch * (CARD_WIDTH + GAP)
    width, height = _flow(inner, padding, heading, room)
    least = EMPTY_NODE_WIDTH if of.level == "numa" else CARD_WIDTH + 2 * padding
    return Box(max(width + padding, least), height + padding if inner else heading, of, inner)


def _flow(boxes: Sequence[Box], left: float, top: float, room: float) -> tuple[float, float]:
    """Place boxes in rows of at most that room; returns their right and bottom end."""
    x, y, row, right = left, top, 0.0, left
    for box in boxes:
        if x > left and x + box.width > left + room:
            x, y, row = left, y + row + GAP, 0.0
        box.move(x, y)
        x += box.width + GAP
        row = max(row, box.height)
        right = max(right, x - GAP)
    return right, y + row


def _pair(boxes: Sequence[Box], columns: int) -> None:
    """Place the NUMA nodes on a grid with rows of equal height and columns of equal width."""
    top = 0.0
    widths = [max(box.width for box in boxes[column::columns]) for column in range(columns)]
    for start in range(0, len(boxes), columns):
        row = boxes[start : start + columns]
        height = max(box.height for box in row)
        left = 0.0
        for box, width in zip(row, widths, strict=False):
            box.move(left, top)
            box.width, box.height = width, height
            left += width + NODE_GAP
        top += height + NODE_GAP


_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold even escaped; a damaged name may bring them."""

_WIDTH = {"sans": 0.58, "bold": 0.63, "mono": 0.605}
"""Average width of a character as a part of the font's size, of the widest font that the picture may be shown with."""


def clean(text: str) -> str:
    """The text without characters that XML cannot hold, and with those visible that change its direction."""
    return printable(_NOT_XML.sub("\ufffd", text))


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
    """The tooltip of its parent element."""
    return f"<title>{escape(clean(text))}</title>"
