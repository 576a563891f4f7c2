"""Text from elsewhere as it may reach a terminal, a log or a message: control characters shown, never sent.

Names, CEL strings, labels, attributes and error texts come from users, containers and devices. Sent to a terminal as
they are, ESC, C0 and C1 control characters move its cursor, retitle it or open links (OSC 8), and bidirectional
controls show another text than there is: the classes of CVE-2021-25743 and CVE-2021-42574.
"""

from __future__ import annotations

import unicodedata

_ELLIPSIS = "..."


def printable(text: str, *, line: bool = False, longest: int | None = None) -> str:
    r"""Return text with every character escaped that Unicode calls not printable: ESC becomes `\x1b`.

    Line feeds and tabs stay, unless it has to be one `line`. Text of more than `longest` characters is cut.
    """
    if longest is not None and len(text) > longest:
        text = text[: max(0, longest - len(_ELLIPSIS))] + _ELLIPSIS
    if text.isprintable():
        return text
    kept = "" if line else "\n\t"
    return "".join(character if _harmless(character) or character in kept else _shown(character) for character in text)


def json_printable(text: str) -> str:
    r"""Return a JSON document with what is not printable in its strings as `\uXXXX`: the same values."""
    if text.isprintable():
        return text
    return "".join(
        character if _harmless(character) or character in "\n\r\t" else _utf16(character) for character in text
    )


def is_printable(text: str) -> bool:
    """Return whether `printable` leaves text as it is."""
    return text.isprintable() or all(_harmless(character) or character in "\n\t" for character in text)


def _harmless(character: str) -> bool:
    # Spaces of other widths are part of ordinary text; Python calls only U+0020 printable.
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _shown(character: str) -> str:
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    if short is not None:
        return short
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _utf16(character: str) -> str:
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
