"""The usual response of an API server: equal to what h11 reads, at every split of its bytes, and nothing else."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_agent.kube_client.ok_response import OkResponse, OtherFormError, Response

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Empty:\r\n"
LENGTH = HEAD + b'Content-Length: 7\r\n\r\n{"a":1}'
CHUNKS = HEAD + b'Transfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n'
MAX_HEAD, MAX_BODY = 1 << 10, 1 << 10


def read(data: bytes) -> Response | None:
    return OkResponse(MAX_HEAD, MAX_BODY).read(data)


def by_h11(data: bytes) -> tuple[int, dict[str, str], bytes] | None:
    """Return what h11 reads; None for an incomplete response, and for bytes after it. Raises RemoteProtocolError."""
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[("Host", "")]))
    http.send(h11.EndOfMessage())
    http.receive_data(data)
    body = b""
    response: h11.Response | None = None
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            return None
        if isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.Response):
            response = event
    assert response is not None
    if http.trailing_data[0] or http.their_state is not h11.DONE:
        return None
    return response.status_code, {name.decode(): value.decode("latin-1") for name, value in response.headers}, body


@pytest.mark.parametrize("data", [LENGTH, CHUNKS], ids=["length", "chunks"])
def test_a_response_is_the_same_at_every_split(data: bytes) -> None:
    for cut in range(len(data)):
        response = OkResponse(MAX_HEAD, MAX_BODY)
        assert response.read(data[:cut]) is None
        complete = response.read(bytearray(data))
        assert complete is not None
        assert (complete.status, complete.headers, complete.body) == by_h11(data)


@pytest.mark.parametrize(
    "data",
    [
        LENGTH.replace(b"200 OK", b"404 Not Found"),
        LENGTH.replace(b"HTTP/1.1", b"HTTP/1.0"),
        LENGTH.replace(b"X-Empty:", b"Connection: close"),
        LENGTH.replace(b"X-Empty:", b"Content-Length: 7"),
        LENGTH.replace(b"X-Empty:", b" folded"),
        LENGTH.replace(b"X-Empty:", b"X-Empty :"),
        LENGTH.replace(b"X-Empty:", b"X: \x00"),
        LENGTH.replace(b"X-Empty:", b"X: a\nContent-Length: 1"),
        LENGTH.replace(b"X-Empty:", b"Transfer-Encoding: chunked"),
        LENGTH.replace(b"Length: 7", b"Length: +7"),
        LENGTH.replace(b"Length: 7", b"Length: 1025"),
        LENGTH.replace(b"Content-Length: 7", b"X: y"),
        LENGTH + b"H",
        CHUNKS + b"H",
        CHUNKS.replace(b"chunked", b"gzip, chunked"),
        CHUNKS.replace(b"\r\n3\r\n", b"\r\n3;a=b\r\n"),
        CHUNKS.replace(b"\r\n3\r\n", b"\r\n+3\r\n"),
        CHUNKS.replace(b"\r\n3\r\n", b"\r\n2\r\n"),
        CHUNKS.replace(b"\r\n3\r\n", b"\r\n401\r\n"),
        CHUNKS.replace(b"0\r\n\r\n", b"0\r\nX: trailer\r\n\r\n"),
        CHUNKS.replace(b"\r\n\r\n3\r\n", b"\r\n\r\n" + (b"200\r\n" + b"x" * 0x200 + b"\r\n") * 3 + b"3\r\n"),
        b"x" * MAX_HEAD,
    ],
)
def test_any_other_form_is_left_to_h11(data: bytes) -> None:
    with pytest.raises(OtherFormError):
        read(data)


_PARTS = [
    b"\r\n",
    b"\n",
    b"\r",
    b":",
    b" ",
    b"0",
    b"3",
    b"7",
    b"f",
    b"Content-Length: 7\r\n",
    b"\r\n\r\n",
    b"{",
    b"\x00",
]


@given(
    st.sampled_from([LENGTH, CHUNKS]),
    st.integers(0, 120),
    st.integers(0, 4),
    st.lists(st.sampled_from(_PARTS)).map(b"".join),
)
def test_a_changed_response_is_never_read_differently_from_h11(base: bytes, at: int, cut: int, put: bytes) -> None:
    data = base[:at] + put + base[at + cut :]
    try:
        response = read(data)
    except OtherFormError:
        return
    if response is not None:
        assert (response.status, response.headers, response.body) == by_h11(data)
