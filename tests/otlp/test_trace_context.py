"""W3C Trace Context, with the examples and the rules of its specification."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_agent.otlp.trace_context import RemoteParent, parse

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("header", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"01-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-a-later-version-adds", True),
        (f" 00-{TRACE}-{SPAN}-01 ", True),
    ],
)
def test_a_valid_header_has_the_callers_span(header: str, is_sampled: bool) -> None:
    expected = RemoteParent(bytes.fromhex(TRACE), bytes.fromhex(SPAN), is_sampled, "a=b")
    assert parse(header, "a=b") == expected


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0x",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01.more",
    ],
)
def test_an_invalid_header_starts_a_new_trace(header: str) -> None:
    assert parse(header) is None


@pytest.mark.parametrize("state", ["x" * 513, "a=b\r\nc", "ä=b"])
def test_an_invalid_state_is_dropped_alone(state: str) -> None:
    found = parse(f"00-{TRACE}-{SPAN}-01", state)
    assert found is not None and found.state == ""


@given(st.text(max_size=80), st.text(max_size=20))
def test_any_text_is_accepted_or_refused(header: str, state: str) -> None:
    found = parse(header, state)
    assert found is None or (len(found.trace_id), len(found.span_id)) == (16, 8)
