"""Requests on local sockets: the first byte selects the kind, the rest is the request.

It is decoded, or refused with a message; a decoded request that is encoded decodes to the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dra_agent.agent.hook_server import HookServer
from dra_agent.errors import AgentError
from dra_agent.reclaim import control as reclaim
from dra_agent.standalone import protocol as standalone
from dra_agent.status import release_socket

_loop = asyncio.new_event_loop()
_hooks = HookServer(Path("/nonexistent/hooks.sock"), {"limit": bool, "interface": bool})
_DECODERS: tuple[Callable[[bytes], Any], ...] = (
    standalone.decode_request,
    reclaim.decode_request,
    release_socket.decode_request,
)


def check(data: bytes) -> None:
    """Read a request as the agent does."""
    kind, text = (data[0], data[1:]) if data else (0, b"")
    try:
        match kind % 4:
            case 3:
                _loop.run_until_complete(_hooks.handle(text))
            case decoder:
                request = _DECODERS[decoder](text)
                written = msgspec.json.encode(request)
                assert _DECODERS[decoder](written) == request, "the encoded request is another request"
    except AgentError as error:
        assert str(error), "a refusal without a message"
