"""Closing a listening server without losing a connection that it has just accepted.

asyncio before 3.12.4 accepts a connection in one turn of the event loop and makes its transport in the next one. Where
the server is closed between the two, the transport is never closed, and its client waits (python/cpython#109564).
"""

from __future__ import annotations

import asyncio


async def stop_accepting(server: asyncio.Server) -> None:
    """Close the listening sockets; the handler is called for every connection that was accepted before."""
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening)
    try:
        await asyncio.sleep(0)  # transports are made
        await asyncio.sleep(0)  # handlers are called
    finally:
        server.close()
