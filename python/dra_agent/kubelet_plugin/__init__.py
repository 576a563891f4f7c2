"""The kubelet plugin: registration with the kubelet, and its gRPC services on unix sockets."""

from dra_agent.deferred_import import defer_import

# grpcio imports its servers and clients for asyncio, and protobuf its implementation in Python, which replaces the one
# in C where that is missing. They take 2 MiB.
defer_import("grpc.aio")
defer_import("google.protobuf.internal.python_message")
