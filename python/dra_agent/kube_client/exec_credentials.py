"""Credentials that a command prints: client.authentication.k8s.io, as cloud providers' kubeconfigs use it."""

from __future__ import annotations

import asyncio
import base64
import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from dra_agent import user_file
from dra_agent.kube_client.config import MAX_FILE_BYTES, ClientConfig, ExecCommand, Pem
from dra_agent.kube_client.errors import UnavailableError

TIMEOUT_S = 30.0
"""Seconds that the command may take."""
RENEW_BEFORE_S = 60.0
"""Seconds before they expire at which credentials are replaced."""


class ExecCredentials(msgspec.Struct, frozen=True):
    """What the command gave."""

    token: str | None
    certificate: Pem | None
    key: Pem | None
    expires: float | None
    """Unix time; none where they are good until they are refused."""

    def is_valid(self) -> bool:
        """Whether they will not expire within a minute."""
        return self.expires is None or time.time() < self.expires - RENEW_BEFORE_S


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None


class _Credential(msgspec.Struct):
    status: _Status


async def run_command(command: ExecCommand, access: ClientConfig) -> ExecCredentials:
    """Run the command of an access. Raises UnavailableError where it fails, hangs, or prints something else."""
    spec: dict[str, Any] = {"interactive": False}
    if command.told_cluster:
        spec["cluster"] = _cluster(command, access)
    request = {"apiVersion": command.api_version, "kind": "ExecCredential", "spec": spec}
    environ = {**os.environ, **dict(command.env), "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode()}
    where = f"{access.source}: exec {command.command}"
    try:
        process = await asyncio.create_subprocess_exec(
            command.command,
            *command.args,
            env=environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise UnavailableError(f"the command for credentials cannot run: {error.strerror}", where=where) from error
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, complaint = await process.communicate()
    except TimeoutError as error:
        raise UnavailableError(f"the command gave no credentials in {TIMEOUT_S:.0f} s", where=where) from error
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode != 0:
        said = complaint.decode(errors="replace").strip()[-300:]
        raise UnavailableError(f"the command for credentials failed ({process.returncode}): {said}", where=where)
    try:
        status = msgspec.json.decode(out, type=_Credential).status
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UnavailableError(f"the command printed no ExecCredential: {error}", where=where) from error
    expires = status.expiration_timestamp
    if expires is not None and expires.tzinfo is None:
        expires = expires.replace(tzinfo=UTC)
    return ExecCredentials(
        token=status.token,
        certificate=Pem(data=status.client_certificate_data.encode()) if status.client_certificate_data else None,
        key=Pem(data=status.client_key_data.encode()) if status.client_key_data else None,
        expires=expires.timestamp() if expires else None,
    )


def _cluster(command: ExecCommand, access: ClientConfig) -> dict[str, Any]:
    """Write ExecCredential.spec.cluster; its names are those of a kubeconfig."""
    told: dict[str, Any] = {"server": access.server, "config": command.cluster_config}
    if access.server_name:
        told["tls-server-name"] = access.server_name
    if access.insecure:
        told["insecure-skip-tls-verify"] = True
    if access.authority is not None:
        data = access.authority.data
        if data is None and access.authority.path is not None:
            try:
                data = user_file.read(access.authority.path, MAX_FILE_BYTES)
            except OSError as error:
                reason = f"the certificate of the cluster's authority cannot be read: {error.strerror}"
                raise UnavailableError(reason, where=str(access.authority.path)) from error
        told["certificate-authority-data"] = base64.b64encode(data or b"").decode()
    return told
