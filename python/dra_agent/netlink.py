"""Queries to the kernel over rtnetlink, each in a separate process.

pyroute2 costs more memory than the rest of the agent, so a process lives as long as one query. If a driver hangs in the
kernel, not even SIGKILL ends the process: it is left behind and not waited for.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dra_agent.child import shared
from dra_agent.errors import RetryableError
from dra_agent.json_decode import decode_json

if TYPE_CHECKING:
    from pyroute2 import IPRoute

_T = TypeVar("_T")
_DONE = 3
_INTERRUPTED = 0x10
"""NLMSG_DONE and NLM_F_DUMP_INTR (linux/netlink.h)."""
_STATUS = struct.Struct("=i")
_HEADER_BYTES = 16
_MAX_DUMPS = 5


def query_subprocess(
    module: str,
    response_type: type[_T],
    deadline: float,
    *,
    hint: str,
    stdin: bytes | None = None,
    files: Sequence[int] = (),
) -> _T:
    """Run the module, which prints its response as JSON, and return that; RetryableError if it does not.

    `stdin` is the content of its standard input, and `files` are descriptors that it inherits under their numbers.
    """
    try:
        done = shared(module, deadline).run([], stdin, files)
        if done.status == 0:
            return decode_json(done.output, type=response_type)
        operation = f"failed: {done.last_line}" if done.errors.strip() else f"failed: exit code {done.status}"
    except RetryableError as error:
        operation = error.message
    except msgspec.DecodeError as error:
        operation = f"failed: {error}"
    raise RetryableError(f"asking the kernel {operation}", where="rtnetlink", hint=hint)


def connect() -> IPRoute:
    """Return a new socket in the network namespace of this thread, whose incomplete dumps raise OSError."""
    from pyroute2 import IPRoute

    network = IPRoute()
    _refuse_incomplete_dumps(network)
    return network


def _refuse_incomplete_dumps(network: IPRoute) -> None:
    """Have dumps over this socket raise OSError if the kernel does not return all, which pyroute2 0.9 does not check.

    InterruptedError: something changed between two parts, and one may be missing.
    """
    marshal: Any = network.marshal
    parser_of = marshal.get_parser
    interrupted: set[int] = set()

    def get_parser(kind: int, flags: int, sequence: int) -> Callable[[bytes, int, int], Any]:
        parser = parser_of(kind, flags, sequence)

        def parse(data: bytes, offset: int, length: int) -> Any:
            if flags & _INTERRUPTED:
                interrupted.add(sequence)
            if kind == _DONE:
                # The end of a dump has the error that stopped it (netlink_dump_done in net/netlink/af_netlink.c).
                has_status = length >= _HEADER_BYTES + _STATUS.size
                status = _STATUS.unpack_from(data, offset + _HEADER_BYTES)[0] if has_status else 0
                if status < 0:
                    raise OSError(-status, os.strerror(-status))
                if sequence in interrupted:  # only now: the kernel runs one dump of a socket at a time
                    interrupted.discard(sequence)
                    raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
            return parser(data, offset, length)

        return parse

    marshal.get_parser = get_parser


def dump(query: Callable[[], Iterable[_T]]) -> list[_T]:
    """Return all results of a query, which is repeated if something changes meanwhile; OSError if they are not all."""
    for _ in range(_MAX_DUMPS - 1):
        try:
            return list(query())
        except InterruptedError:
            continue
    return list(query())
