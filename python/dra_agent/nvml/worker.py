"""The process that has the library: reads calls, makes them, answers. It ends when nobody asks any more.

One JSON object in a line, in both directions. A call has `id`, `lane`, `name` and `args`; calls of one lane are made
one after the other, and those of different lanes at the same time. An answer has `id`, `filled` (what the call wrote
into its arguments: [position, bytes in hex]) and one of `value`, `refused` ([code, text] of NVML), `stale`, `missing`
(the library cannot be loaded) and `defect`. The first answer is to no call and says that the process is there.

The imports are few because each is memory of every node with a GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
from functools import partial
from queue import SimpleQueue
from typing import Any

from dra_agent.nvml.values import Codec, Handles, StaleHandleError, targets
from dra_agent.nvml.worker_calls import CALLS


class WorkerServer:
    """Answers the calls of one agent."""

    def __init__(self, connection: socket.socket, generation: int, path: str) -> None:
        import pynvml

        handles = Handles(generation)
        self._module: Any = pynvml
        self._codec = Codec(pynvml, handles.token, handles.address)
        self._connection = connection
        self._path = path
        self._loaded = not path
        self._lanes: dict[str, SimpleQueue[dict[str, Any]]] = {}
        self._sending = threading.Lock()
        self._loading = threading.Lock()

    def serve(self) -> None:
        """Say that it is there, and answer until the agent's end is closed."""
        self._connection.sendall(b'{"id":0}\n')
        with self._connection.makefile("rb") as lines:
            for line in lines:
                call = json.loads(line)
                self._lane(call["lane"]).put(call)

    def _lane(self, name: str) -> SimpleQueue[dict[str, Any]]:
        queue = self._lanes.get(name)
        if queue is None:
            queue = self._lanes[name] = SimpleQueue()
            threading.Thread(target=self._work, args=(queue,), name=name, daemon=True).start()
        return queue

    def _work(self, queue: SimpleQueue[dict[str, Any]]) -> None:
        while True:
            call = queue.get()
            answer = {"id": call["id"], **self._answer(call["name"], call["args"])}
            line = json.dumps(answer, separators=(",", ":")).encode() + b"\n"
            try:
                with self._sending:
                    self._connection.sendall(line)
            except OSError:  # the agent is gone, and so is the reason to be here
                os._exit(0)

    def _answer(self, name: str, encoded: list[Any]) -> dict[str, Any]:
        arguments: list[Any] = []
        try:
            self._load()
            arguments = [self._codec.decode(argument) for argument in encoded]
            answer = {"value": self._codec.encode(self._function(name)(*arguments))}
        except self._module.NVMLError as error:
            answer = {"refused": [error.value, self._text(error)]}
        except StaleHandleError as error:
            answer = {"stale": str(error)}
        except OSError as error:
            answer = {"missing": str(error)}
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            answer = {"defect": f"{type(error).__name__}: {error}"}
        filled = [
            [number, self._codec.content(target)]
            for number, argument in enumerate(arguments)
            if (target := targets(argument)) is not None
        ]
        return {**answer, "filled": filled} if filled else answer

    def _function(self, name: str) -> Any:
        own = CALLS.get(name)
        return getattr(self._module, name) if own is None else partial(own, self._module)

    def _load(self) -> None:
        with self._loading:
            if not self._loaded:
                # pynvml looks for a soname only; this is how it takes another library.
                self._module.nvmlLib = ctypes.CDLL(self._path)
                self._loaded = True

    def _text(self, error: Any) -> str:
        try:
            return str(error)
        except self._module.NVMLError:  # the text is the library's too
            return f"error {error.value}"


def main(descriptor: int, generation: int, path: str) -> None:
    """Serve the agent at the other end of a socket."""
    # The agent decides when this ends, and is told by the same signals; its end closes the socket.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        WorkerServer(socket.socket(fileno=descriptor), generation, path).serve()
    finally:
        # A call that hangs must not keep the process.
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
