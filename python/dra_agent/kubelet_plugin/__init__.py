"""The kubelet plugin: registration with the kubelet, and its gRPC services on unix sockets."""

import os

from dra_agent.deferred_import import defer_import

# Before the first import of gRPC. Its handlers of fork(2) stop and start its threads: while the system has no room for
# a thread, that ends the process. No child of the agent uses gRPC.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# It writes its own log to standard error, where a reader that stalls would stop its threads.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# grpcio imports its servers and clients for asyncio, and protobuf its implementation in Python, which replaces the one
# in C where that is missing. They take 2 MiB.
defer_import("grpc.aio")
defer_import("google.protobuf.internal.python_message")
