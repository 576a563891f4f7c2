"""Text of a tenant that the API server stores and returns as it is, in the responses of the fake API server."""

from __future__ import annotations

from typing import Any

PLACE = "@foreign@"
"""Put where the text belongs; no Python value can hold it."""
LEVELS = 1200
DEEP = b'{"lists":' + b"[" * LEVELS + b"]" * LEVELS + b"}"
BAD: dict[str, bytes] = {
    "deep": DEEP,
    "deep-objects": b'{"a":' * LEVELS + b"1" + b"}" * LEVELS,
    "surrogate": rb'{"text":"\ud800"}',
    "surrogate-key": rb'{"\udfff":1,"quote":"\"]}"}',
    "bytes": b'{"text":"\xff\xfe"}',
    "number": b'{"number":1e999}',
    "deeper-than-rust": b'{"lists":' + b"[" * 200 + b"]" * 200 + b"}",
}
"""Legal for the API server, except the number; refused by decoders."""


def parameters(driver: str = "other.example.com") -> dict[str, Any]:
    """Return an opaque configuration with the text as parameters."""
    return {"opaque": {"driver": driver, "parameters": PLACE}}
