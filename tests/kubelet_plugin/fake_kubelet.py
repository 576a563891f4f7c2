"""A fake kubelet: finds sockets in plugins_registry, registers drivers, and calls them as the kubelet does.

As in Kubernetes 1.37: files whose names start with a dot are ignored; the authority of a registration is the
percent-encoded path of the socket; each driver instance has one connection; a call has 45 s. There, GetInfo has 1 s and
the notification 5 s. Here both have more time than any machine needs: driver and kubelet share a process, so their
durations depend on the load of the machine.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import Message

from dra_agent.kubelet_plugin.proto import dra_v1_pb2, pluginregistration_pb2
from eventually import DEADLINE_S, eventually_async

SERVICE = "v1.DRAPlugin"
"""The service that a kubelet looks for among those of a driver."""


@dataclass
class Driver:
    """A registered instance of a driver."""

    name: str
    endpoint: Path
    services: list[str]
    channel: grpc.aio.Channel

    async def call(self, method: str, claims: Sequence[tuple[str, str, str]], timeout: float = 45.0) -> Any:
        """Call with `claims` as (namespace, name, uid)."""
        service = dra_v1_pb2.DESCRIPTOR.services_by_name["DRAPlugin"].full_name
        kind = "NodePrepareResources" if method == "prepare" else "NodeUnprepareResources"
        request = getattr(dra_v1_pb2, f"{kind}Request")()
        for namespace, name, uid in claims:
            request.claims.add(namespace=namespace, name=name, uid=uid)
        response = getattr(dra_v1_pb2, f"{kind}Response")
        call: grpc.aio.UnaryUnaryMultiCallable[Message, Any] = self.channel.unary_unary(
            f"/{service}/{kind}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return await call(request, timeout=timeout)


@dataclass
class FakeKubelet:
    """A kubelet directory under observation; `drivers` has each registered instance by its registration socket."""

    directory: Path
    refuse: str = ""
    """The error that the kubelet reports to a driver instead of registering it."""
    drivers: dict[Path, Driver] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    seen: dict[Path, int] = field(default_factory=dict)

    @property
    def registry(self) -> Path:
        return self.directory / "plugins_registry"

    def sockets(self) -> dict[Path, int]:
        found = {}
        for path in self.registry.glob("**/*"):
            with contextlib.suppress(FileNotFoundError):
                if not path.name.startswith(".") and stat.S_ISSOCK(path.stat().st_mode):
                    found[path] = path.stat().st_ino
        return found

    async def reconcile(self) -> None:
        """Run one round of the reconciler."""
        sockets = self.sockets()
        for path in [path for path, inode in self.seen.items() if sockets.get(path) != inode]:
            del self.seen[path]
            if driver := self.drivers.pop(path, None):
                await driver.channel.close()
        for path, inode in sockets.items():
            if path not in self.seen:
                try:
                    await self.register(path)
                except grpc.aio.AioRpcError as error:
                    self.errors.append(error.details() or "")
                    continue
                self.seen[path] = inode

    async def register(self, path: Path) -> None:
        options = [("grpc.default_authority", quote(str(path), safe=""))]
        async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
            get_info = channel.unary_unary(
                "/pluginregistration.Registration/GetInfo",
                request_serializer=pluginregistration_pb2.InfoRequest.SerializeToString,
                response_deserializer=pluginregistration_pb2.PluginInfo.FromString,
            )
            notify = channel.unary_unary(
                "/pluginregistration.Registration/NotifyRegistrationStatus",
                request_serializer=pluginregistration_pb2.RegistrationStatus.SerializeToString,
                response_deserializer=pluginregistration_pb2.RegistrationStatusResponse.FromString,
            )
            info = await get_info(pluginregistration_pb2.InfoRequest(), timeout=DEADLINE_S)
            assert info.type == "DRAPlugin"
            if self.refuse:
                await notify(pluginregistration_pb2.RegistrationStatus(error=self.refuse), timeout=DEADLINE_S)
                return
            assert SERVICE in info.supported_versions
            endpoint = Path(info.endpoint or path)
            self.drivers[path] = Driver(
                info.name,
                endpoint,
                list(info.supported_versions),
                grpc.aio.insecure_channel(f"unix:{endpoint}"),
            )
            await notify(pluginregistration_pb2.RegistrationStatus(plugin_registered=True), timeout=DEADLINE_S)

    async def driver(self) -> Driver:
        """Reconcile until a driver is registered."""

        async def registered() -> bool:
            await self.reconcile()
            return bool(self.drivers)

        await eventually_async(registered, lambda: f"no driver registered; sockets: {self.sockets()}")
        return next(iter(self.drivers.values()))

    async def close(self) -> None:
        for driver in self.drivers.values():
            await driver.channel.close()
