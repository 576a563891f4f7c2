"""The registration service: announces the driver and receives the kubelet's result. It never blocks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc

from dra_agent.kubelet_plugin.handlers import RefusedError, service, unary
from dra_agent.kubelet_plugin.proto import pluginregistration_pb2 as messages

log = logging.getLogger(__name__)

KIND = "DRAPlugin"
DRA_SERVICES = ("v1.DRAPlugin",)
HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Services as they are advertised: not the names on the wire. The kubelet uses the first of each that it supports."""


@dataclass(frozen=True, slots=True)
class RegistrationStatus:
    """The last registration status."""

    done: bool = False
    error: str = ""
    at: float | None = None
    """Unix time; None before the first status."""

    def __str__(self) -> str:
        if self.done:
            return "registered with the kubelet"
        return f"the kubelet refused the driver: {self.error}" if self.at is not None else "waiting for the kubelet"


class Registration:
    """Serves one driver's registration on any number of sockets."""

    def __init__(
        self, driver: str, endpoint: Path, *, health: bool, on_status: Callable[[RegistrationStatus], None]
    ) -> None:
        """`endpoint` is the service's socket; `on_status` is called on the event loop with the kubelet's status."""
        self._info = messages.PluginInfo(
            type=KIND,
            name=driver,
            endpoint=str(endpoint),
            supported_versions=(*DRA_SERVICES, *(HEALTH_SERVICES if health else ())),
        )
        self._on_status = on_status
        self.state = RegistrationStatus()

    def handler(self, pool: ThreadPoolExecutor) -> grpc.GenericRpcHandler:
        """Return the handlers for a gRPC server; calls wait on threads of `pool`."""
        return service(
            messages,
            "Registration",
            {
                "GetInfo": unary(self._get_info, messages.InfoRequest, messages.PluginInfo, pool),
                "NotifyRegistrationStatus": unary(
                    self._notify, messages.RegistrationStatus, messages.RegistrationStatusResponse, pool
                ),
            },
        )

    async def _get_info(self, request: messages.InfoRequest) -> messages.PluginInfo:
        return self._info

    async def _notify(self, request: messages.RegistrationStatus) -> messages.RegistrationStatusResponse:
        self.state = RegistrationStatus(request.plugin_registered, request.error, time.time())  # noqa: TID251 - a moment that people are shown
        if request.plugin_registered:
            log.info("registered with the kubelet", extra={"driver": self._info.name})
        else:
            log.error(
                "the kubelet refused the driver", extra={"driver": self._info.name, "reason": request.error or "none"}
            )
        self._on_status(self.state)
        if not request.plugin_registered:
            # After an error the kubelet removes the plugin and retries.
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, f"not registered: {request.error}")
        return messages.RegistrationStatusResponse()
