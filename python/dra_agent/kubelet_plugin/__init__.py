"""The kubelet plugin: registration with the kubelet, and its gRPC services on unix sockets."""

import os

from dra_agent.deferred_import import defer_import

# Before the first import of grpcio, which reads the variable then. Without this part, a call takes a third fewer
# switches between threads (docs/adr/0064-grpc-without-the-listener-of-its-event-engine.md). A set value is kept.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")

# grpcio imports its servers and clients for asyncio, and protobuf its implementation in Python, which replaces the one
# in C where that is missing. They take 2 MiB.
defer_import("grpc.aio")
defer_import("google.protobuf.internal.python_message")
