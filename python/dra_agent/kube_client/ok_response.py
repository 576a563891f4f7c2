"""Responses of HTTP/1.1, and the form in which an API server returns an object: 200, with a length or in chunks.

This form is read without h11, which needs more CPU time than the rest of the read. Every other form is left to h11:
another status, folded or repeated headers, trailers, chunk extensions, bytes after the body.
"""

from __future__ import annotations

import re

_NAME = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_VALUE = rb"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?"
# Each value ends where its line does, and a name has no colon, so no text is matched in two ways.
_HEAD = re.compile(rb"HTTP/1\.1 200 [\x20-\x7e]*\r\n(?:" + _NAME + rb":[ ]?(?:" + _VALUE + rb")?\r\n)*\r\n")
_LENGTH = re.compile(r"[0-9]{1,8}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,7})\r\n")
_CHUNK_START = re.compile(rb"[0-9A-Fa-f]{0,7}\r?")
_ENDS_CONNECTION = frozenset(("connection", "keep-alive", "upgrade"))


class Response:
    """A complete response."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        """Names in lower case."""
        self.body = body


class OtherFormError(Exception):
    """The response has another form, or is damaged."""


class OkResponse:
    """A response as its bytes arrive."""

    def __init__(self, max_head: int, max_body: int) -> None:
        """`max_head`, `max_body`: bytes up to which this form is read."""
        self._max_head = max_head
        self._max_body = max_body
        self._headers: dict[str, str] | None = None
        self._length = -1
        """Bytes of the body; negative for chunks."""
        self._at = 0
        """Where the body, or the next chunk, starts."""
        self._parts: list[bytes] = []
        self._size = 0
        """Bytes in chunks so far."""

    def read(self, data: bytes | bytearray) -> Response | None:
        """Return the response; None if it is not complete. `data` has all bytes so far.

        Raises OtherFormError.
        """
        if self._headers is None:
            end = data.find(b"\r\n\r\n", 0, self._max_head)
            if end < 0:
                if len(data) >= self._max_head:
                    raise OtherFormError
                return None
            self._at = end + 4
            self._headers = self._read_head(bytes(data[: self._at]))
        return self._of_length(data, self._headers) if self._length >= 0 else self._in_chunks(data, self._headers)

    def _read_head(self, head: bytes) -> dict[str, str]:
        if _HEAD.fullmatch(head) is None:
            raise OtherFormError
        headers: dict[str, str] = {}
        for line in head[:-4].decode("ascii").split("\r\n")[1:]:
            name, _, value = line.partition(":")
            name = name.lower()
            if name in headers or name in _ENDS_CONNECTION:
                raise OtherFormError
            headers[name] = value.removeprefix(" ")
        length = headers.get("content-length")
        if (coding := headers.get("transfer-encoding")) is not None:
            if length is not None or coding != "chunked":
                raise OtherFormError
        elif length is None or _LENGTH.fullmatch(length) is None or int(length) > self._max_body:
            raise OtherFormError
        else:
            self._length = int(length)
        return headers

    def _of_length(self, data: bytes | bytearray, headers: dict[str, str]) -> Response | None:
        missing = self._at + self._length - len(data)
        if missing < 0:
            raise OtherFormError
        return None if missing else Response(200, headers, bytes(data[self._at :]))

    def _in_chunks(self, data: bytes | bytearray, headers: dict[str, str]) -> Response | None:
        while True:
            found = _CHUNK.match(data, self._at)
            if found is None:
                if _CHUNK_START.fullmatch(data, self._at) is None:
                    raise OtherFormError
                return None
            start = found.end()
            end = start + int(found[1], 16)
            if self._size + end - start > self._max_body:
                raise OtherFormError
            if len(data) < end + 2:
                return None
            if data[end : end + 2] != b"\r\n":
                raise OtherFormError
            if end == start:
                if len(data) > end + 2:
                    raise OtherFormError
                return Response(200, headers, b"".join(self._parts))
            self._parts.append(bytes(data[start:end]))
            self._size += end - start
            self._at = end + 2
