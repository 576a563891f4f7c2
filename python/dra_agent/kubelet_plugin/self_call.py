"""Calls of the plugin to itself: gRPC's own threads can be missing without an error, and then it never responds.

gRPC starts its threads with the first server of the process, and does not try again where the system refused them.
"""

from __future__ import annotations

import grpc

from dra_agent.errors import RetryableError
from dra_agent.kubelet_plugin.proto import pluginregistration_pb2 as messages

GRPC_THREADS = 24
"""At least as many as gRPC and the server start at once: up to 16 that work, its timers, and the one that serves."""
CALL_TIMEOUT_S = 5.0


def call_registration(address: str) -> None:
    """Ask the plugin for its info, as the kubelet does, at a gRPC address. Raises RetryableError without a response."""
    # gRPC would use the connection of an earlier call.
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        get_info = channel.unary_unary(
            "/pluginregistration.Registration/GetInfo",
            request_serializer=messages.InfoRequest.SerializeToString,
            response_deserializer=messages.PluginInfo.FromString,
        )
        try:
            get_info(messages.InfoRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise RetryableError(
                f"the plugin does not respond to calls ({error.code().name})",
                where=address,
                hint="the agent is restarted if this lasts; check the limits of threads and memory",
            ) from error
