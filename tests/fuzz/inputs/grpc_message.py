"""Messages of the kubelet: the second bit of the first byte selects the method, the rest is the message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc

from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError
from dra_agent.kubelet_plugin.claim_executor import ClaimExecutor
from dra_agent.kubelet_plugin.proto import dra_v1_pb2
from dra_agent.kubelet_plugin.service import MAX_CLAIMS, DraService

METHODS = ("NodePrepareResources", "NodeUnprepareResources")
SERVICE = dra_v1_pb2.DESCRIPTOR.services_by_name["DRAPlugin"].full_name


class Claims:
    """Claims with a name of even length exist."""

    async def claim(self, namespace: str, name: str, timeout: float) -> dict[str, Any]:
        if len(name) % 2:
            raise PermanentError("does not exist", where=name)
        results = [{"request": "gpu", "driver": "d", "pool": "n/gpu", "device": "gpu-0"}]
        status = {"allocation": {"devices": {"results": results}}}
        return {"metadata": {"namespace": namespace, "name": name, "uid": name}, "status": status}

    def claim_on_thread(self, namespace: str, name: str, timeout: float) -> dict[str, Any] | None:
        return None


class Devices:
    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        return [ClaimDevice("n/gpu", "gpu-0", ("gpu",), cdi_device_ids=("d/claim=x",))]

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        """Release nothing."""


class _AbortedError(Exception):
    pass


class _Context:
    code: grpc.StatusCode | None = None

    def time_remaining(self) -> float:
        return 5.0

    def is_active(self) -> bool:
        return True

    def add_callback(self, callback: object) -> bool:
        return True

    def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        assert details, "a refusal without a message"
        self.code = code
        raise _AbortedError(details)


_loop = asyncio.new_event_loop()
_handlers: list[Any] = []


class _Details:
    invocation_metadata: tuple[tuple[str, str | bytes], ...] = ()

    def __init__(self, method: str) -> None:
        self.method = method


async def _start() -> None:
    service = DraService(Claims(), ClaimExecutor(2))
    service.set_preparer(Devices())
    _handlers.append(service.handler())


def check(data: bytes) -> None:
    """Call a method; every claim in it has one response, and no other claim has one."""
    if not _handlers:
        _loop.run_until_complete(_start())
    kind, message = (data[0], data[1:]) if data else (0, b"")
    method = METHODS[kind >> 1 & 1]
    handler = _handlers[0].service(_Details(f"/{SERVICE}/{method}"))
    request = handler.request_deserializer(message)
    context = _Context()
    try:
        response = _loop.run_until_complete(_loop.run_in_executor(None, handler.unary_unary, request, context))
    except _AbortedError:
        assert context.code == grpc.StatusCode.INVALID_ARGUMENT
        assert not hasattr(request, "claims") or len(request.claims) > MAX_CLAIMS, "a valid message is refused"
        return
    written = handler.response_serializer(response)
    assert type(response).FromString(written) == response
    uids = {claim.uid for claim in request.claims}
    assert set(response.claims) == uids, "a response for each claim"
    for uid, result in response.claims.items():
        devices = getattr(result, "devices", ())
        assert not (result.error and devices), f"claim {uid} has devices and an error"
        if method == METHODS[0]:
            assert result.error or devices, f"claim {uid} has neither devices nor an error"
