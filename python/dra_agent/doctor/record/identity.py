"""Replaces the identifiers of a host in a recording: a value has the same replacement in every file.

Replacements have the form of the original: a hardware address stays a local unicast address, a UUID stays a UUID, and a
number keeps its digits. They derive from a key that is not kept, so that short serial numbers cannot be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import string
from collections.abc import Callable

_HEX = "0-9A-Fa-f"
_UUID = re.compile(rf"(?<![{_HEX}])[{_HEX}]{{8}}(?:-[{_HEX}]{{4}}){{3}}-[{_HEX}]{{12}}(?![{_HEX}])")
# 6 octets: Ethernet; 8: EUI-64, and the serial number of a PCIe function; 20: InfiniBand, whose last 8 are a GUID.
_OCTETS = re.compile(rf"(?<![{_HEX}:.-])[{_HEX}]{{2}}(?:([:-])[{_HEX}]{{2}})(?:\1[{_HEX}]{{2}}){{4,18}}(?![{_HEX}:-])")
_GROUPS = re.compile(rf"(?<![{_HEX}:])(?:[{_HEX}]{{4}}:){{3}}(?:(?:[{_HEX}]{{4}}:){{4}})?[{_HEX}]{{4}}(?![{_HEX}:])")
# udev names interfaces after hardware addresses where firmware names no slot: enx001122334455.
_NAMED = re.compile(
    r"(?<![A-Za-z0-9])((?:en|wl|ww|ib|roce|iw|opa)[a-z0-9]*?x)([0-9a-f]{16}|[0-9a-f]{12})(?![A-Za-z0-9])"
)

_KEYS = r"serial|uuid|guid|unique[ _-]?id|hive[ _-]?id|\bpdi\b|host[ _-]?id|hostname|node[ _-]?name"
_LABELED = (
    re.compile(rf"<(?P<key>\w*(?:{_KEYS})\w*)>(?P<value>[^<]+)<", re.IGNORECASE),
    re.compile(rf'"(?P<key>[^"\n]*(?:{_KEYS})[^"\n]*)"\s*:\s*"?(?P<value>[^",}}\n]+)', re.IGNORECASE),
    re.compile(
        rf"^(?P<key>[^:\n<\"]*(?:{_KEYS})[^:\n<\"]*?)\s*:\s*(?P<value>[^\n<]+?)\s*$", re.IGNORECASE | re.MULTILINE
    ),
    # rocm-smi has the device in front: "GPU[0] : Unique ID: 0x18f68e602b8a790f".
    re.compile(rf"(?P<key>(?:{_KEYS})[^:\n<\"]*?)\s*:\s*(?P<value>[^:\n<]+?)\s*$", re.IGNORECASE | re.MULTILINE),
    # Vital product data, as lspci prints it: serial number, and fields of the vendor and of the system.
    re.compile(r"\[(?P<key>SN|V[0-9A-Z]|Y[0-9A-Z])\] [^:\n]*: (?P<value>[^\n]+)"),
)
_MARK = re.compile("\ue000([0-9]+)\ue001")
_PRIVATE = (re.compile(r"(<process_name>)[^<]*(<)"), re.compile(r"(<name>)[^<]*(</name>\s*<pid>)"))
_NOTHING = frozenset(
    {
        "n/a",
        "none",
        "(none)",
        "localhost",
        "unknown",
        "unknown error",
        "[n/a]",
        "not supported",
        "null",
        "true",
        "false",
    }
)
_MIN_LEARNED = 5
"""Characters of a value that is replaced wherever it occurs; a shorter one is replaced behind its label only."""
_MIN_NUMBER = 1 << 32


class Replacements:
    """The replacements of one recording."""

    def __init__(self, key: bytes, hostname: str = "") -> None:
        """`key` is secret and random; the name of the host is replaced in outputs of tools."""
        self._key = key
        self._learned: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        if len(hostname) >= _MIN_LEARNED and hostname.lower() not in _NOTHING:
            self._add(hostname, f"host-{self._digest('host', hostname).hex()[:8]}")
            short = hostname.partition(".")[0]
            if len(short) >= _MIN_LEARNED:
                self._add(short, f"host-{self._digest('host', short).hex()[:8]}")

    def learn(self, value: str) -> None:
        """Take a serial number, or another text that identifies hardware; it is replaced wherever it occurs."""
        value = value.strip()
        if len(value) >= _MIN_LEARNED and value.lower() not in _NOTHING and set(value) - set("0 -_.:xX"):
            self._add(value, self._shaped(value))

    def learn_number(self, number: int) -> None:
        """Take a number that identifies hardware; it is replaced in decimal and hexadecimal notation."""
        if number < _MIN_NUMBER:
            return
        other = self.number(number)
        for form in ("{:d}", "{:x}", "{:016x}", "0x{:x}", "0x{:016x}", "{:X}", "0x{:X}", "0x{:016X}"):
            self._add(form.format(number), form.format(other))

    def number(self, number: int) -> int:
        """Return the replacement of a number: with as many hexadecimal digits."""
        low = 1 << max(number.bit_length() - 1, 0) // 4 * 4
        return low + int.from_bytes(self._digest("number", str(number)), "big") % (15 * low) if number else 0

    def learn_from(self, text: str) -> None:
        """Take the values behind labels such as "Serial Number:" in the output of a tool."""
        for pattern in _LABELED:
            for found in pattern.finditer(text):
                self._take(found["value"].strip())

    def tool_output(self, text: str) -> str:
        """Replace in the output of a tool."""
        text = text.replace("\ue000", "?")
        done: list[str] = []
        for pattern in _LABELED:
            text = pattern.sub(lambda found: self._labeled(found, done), text)
        for private in _PRIVATE:
            text = private.sub(r"\1process\2", text)
        return _MARK.sub(lambda found: done[int(found[1])], self.text(text))

    def text(self, text: str) -> str:
        """Replace in any text, also in a path."""
        for pattern, replace in self._forms():
            text = pattern.sub(replace, text)
        if self._pattern is None and self._learned:
            longest = sorted(self._learned, key=len, reverse=True)
            words = "|".join(re.escape(value) for value in longest)
            self._pattern = re.compile(rf"(?<![0-9A-Za-z])(?:{words})(?![0-9A-Za-z])")
        return text if self._pattern is None else self._pattern.sub(lambda found: self._learned[found[0]], text)

    def data(self, content: bytes) -> bytes:
        """Replace in bytes of the same length, such as a structure with texts in it."""
        changed = self.text(content.decode("latin-1")).encode("latin-1", "replace")
        return changed if len(changed) == len(content) else content

    def raw(self, content: bytes) -> bytes:
        """Return the replacement of bytes that are an identity, such as a UUID in a structure; zeros stay."""
        if not any(content):
            return content
        if len(content) == 16:
            text = content.hex()
            shown = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
            return bytes.fromhex(self._uuid_of(shown).replace("-", ""))
        return self._bytes("raw", content.hex(), len(content))

    def _forms(self) -> tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]:
        return (
            (_UUID, lambda found: self._uuid_of(found[0])),
            (_OCTETS, self._octets),
            (_GROUPS, self._groups),
            (_NAMED, lambda found: found[1] + self._address(bytes.fromhex(found[2])).hex()),
        )

    def _labeled(self, found: re.Match[str], done: list[str]) -> str:
        """Replace a value by a mark, so that its replacement is not replaced again."""
        value = found["value"].strip()
        if not value or _MARK.search(value):
            return found[0]
        start, end = found.span("value")
        whole, offset = found[0], found.start()
        changed = self._learned.get(value) or self.text(value)
        if changed == value and value.lower() not in _NOTHING and set(value) - set("0 -_.:xX"):
            changed = self._shaped(value)
        done.append(changed)
        mark = f"\ue000{len(done) - 1}\ue001"
        return whole[: start - offset] + found["value"].replace(value, mark) + whole[end - offset :]

    def _take(self, value: str) -> None:
        if re.fullmatch(r"0[xX][0-9A-Fa-f]+", value):
            self.learn_number(int(value, 16))
        elif value.isdecimal() and int(value) >= _MIN_NUMBER:
            self.learn_number(int(value))
        elif self.text(value) == value:
            self.learn(value)

    def _add(self, value: str, replacement: str) -> None:
        if value not in self._learned:
            self._learned[value] = replacement
            self._pattern = None

    def _uuid_of(self, text: str) -> str:
        if not set(text) - set("0-"):
            return text
        digits = bytearray(self._digest("uuid", text.lower())[:16])
        digits[6], digits[8] = digits[6] & 0x0F | 0x40, digits[8] & 0x3F | 0x80
        other = digits.hex()
        shown = f"{other[:8]}-{other[8:12]}-{other[12:16]}-{other[16:20]}-{other[20:]}"
        return shown.upper() if text.upper() == text and text.lower() != text else shown

    def _octets(self, found: re.Match[str]) -> str:
        separator = found[1]
        raw = bytes.fromhex(found[0].replace(separator, ""))
        match len(raw):
            case 6 | 8:
                changed = self._address(raw)
            case 20:
                # Flags, queue pair and the prefix of the subnet identify nothing.
                changed = raw[:12] + self._address(raw[12:])
            case _:
                return found[0]
        shown = changed.hex(separator)
        return shown.upper() if found[0].upper() == found[0] and found[0].lower() != found[0] else shown

    def _groups(self, found: re.Match[str]) -> str:
        raw = bytes.fromhex(found[0].replace(":", ""))
        changed = raw[:-8] + self._address(raw[-8:])
        return ":".join(changed.hex()[start : start + 4] for start in range(0, 2 * len(changed), 4))

    def _address(self, raw: bytes) -> bytes:
        """Replace a MAC address or an EUI-64; addresses of groups, all zeros and all ones stay."""
        if not any(raw) or all(octet == 0xFF for octet in raw) or (len(raw) == 6 and raw[0] & 1):
            return raw
        changed = bytearray(self._bytes("address", raw.hex(), len(raw)))
        changed[0] = changed[0] & 0xFC | 0x02
        return bytes(changed)

    def _shaped(self, value: str) -> str:
        """Return a text of the same shape: digits for digits, letters for letters, hexadecimal for hexadecimal."""
        stream = self._bytes("text", value, len(value))
        prefix = 2 if value[:2].lower() == "0x" else 0
        body = value[prefix:]
        is_hex = all(char in string.hexdigits for char in body) and not body.isdecimal()
        shown = [value[:prefix]]
        for char, octet in zip(body, stream, strict=False):
            if char.isdecimal():
                shown.append(string.digits[octet % 10])
            elif char.isascii() and char.isalpha():
                letters = "abcdef" if is_hex else string.ascii_lowercase
                letter = letters[octet % len(letters)]
                shown.append(letter.upper() if char.isupper() else letter)
            else:
                shown.append(char)
        return "".join(shown)

    def _bytes(self, kind: str, value: str, length: int) -> bytes:
        stream = b""
        while len(stream) < length:
            stream += self._digest(f"{kind}{len(stream)}", value)
        return stream[:length]

    def _digest(self, kind: str, value: str) -> bytes:
        return hmac.new(self._key, f"{kind}\0{value}".encode(), hashlib.sha256).digest()
