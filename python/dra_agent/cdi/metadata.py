"""Device metadata of prepared claims (KEP-5304): the document of each request, and the files that containers mount.

Content and container paths are those of `k8s.io/dynamic-resource-allocation/api/metadata` v0.37: a stream of JSON
objects, one per version of the API, newest first. On the host each claim has a directory with one file per request.
Containers get a file by a bind mount, which follows the inode and not the name: an update is written into the existing
file, so that running containers read it too.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dra_agent import atomic_file
from dra_agent.cdi.claim import SpecDevice
from dra_agent.cdi.model import ContainerEdits, Mount
from dra_agent.cdi.names import check_driver, check_uid, is_uid
from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.model import Device
from dra_agent.inventory.network_data import network_data
from dra_agent.json_decode import decode_json

API_VERSION = "metadata.resource.k8s.io/v1beta1"
POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
"""On claims created from a template: the pod's name for the claim. Containers know it, not the generated name."""
_CONTAINER_DIR = "/var/run/kubernetes.io/dra-device-attributes"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MODE = 0o644

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestMetadata:
    """One request of the claim with the devices that satisfy it."""

    request: str
    """Without the subrequest: paths contain it."""
    result: str
    """As in the allocation: "gpus", or "gpus/h100" if a subrequest was chosen."""
    devices: tuple[tuple[str, Device], ...]
    """With their pools."""


@dataclass(frozen=True, slots=True)
class ClaimMetadata:
    """Content of the metadata files of one claim, and which of its devices mounts which file."""

    claim: ClaimRef
    pod_claim_name: str | None
    requests: tuple[RequestMetadata, ...]
    mounted_by: tuple[tuple[str, ...], ...] = ()
    """For each device of the claim, the requests of the files that it mounts."""


def claim_metadata(
    claim: ClaimRef, pod_claim_name: str | None, devices: Sequence[tuple[ClaimDevice, Device]]
) -> ClaimMetadata:
    """Return the metadata of a claim from its devices as the inventory has them now.

    The first device of a request mounts its file, as upstream does: every container with the request gets that device.
    """
    found: dict[str, RequestMetadata] = {}
    mounted_by: list[tuple[str, ...]] = []
    for allocated, device in devices:
        new = []
        for result in allocated.allocated_requests:
            request = result.partition("/")[0]
            known = found.get(request)
            if known is None:
                new.append(request)
                known = RequestMetadata(request, result, ())
            found[request] = RequestMetadata(request, known.result, (*known.devices, (allocated.pool, device)))
        mounted_by.append(tuple(new))
    return ClaimMetadata(claim, pod_claim_name, tuple(found.values()), tuple(mounted_by))


class MetadataDirectory:
    """The metadata files of one driver; safe to use from several threads for different claims."""

    def __init__(self, path: Path, driver: str, *, enabled: bool = True) -> None:
        """If not `enabled`, nothing is written."""
        self.path = path
        self.driver = check_driver(driver)
        self.enabled = enabled

    def file(self, uid: str, request: str) -> Path:
        """Return the path of a request's file on the host."""
        return self.path / check_uid(uid) / f"{request}.json"

    def with_mounts(self, metadata: ClaimMetadata, devices: Sequence[SpecDevice]) -> list[SpecDevice]:
        """Add the mounts of the metadata files to the devices of the claim. Raises PermanentError for unsafe names."""
        mounts = {item.request: self._mount(metadata, item.request) for item in metadata.requests}
        return [
            _with_edits(device, ContainerEdits(mounts=tuple(mounts[request] for request in requests)))
            for device, requests in zip(devices, metadata.mounted_by, strict=True)
        ]

    def ensure(self, metadata: ClaimMetadata) -> bool:
        """Write the files of a claim that are missing or differ; True if one was missing or damaged.

        New content gets a new generation. Raises RetryableError if the files cannot be written.
        """
        return bool(self.enabled and [item for item in metadata.requests if self._ensure(metadata, item)])

    def delete(self, uid: str) -> bool:
        """Remove the files of a claim; False if there were none. Raises RetryableError if they cannot be removed."""
        folder = self.path / check_uid(uid)
        try:
            os.lstat(folder)
            import shutil  # not loaded on nodes whose claims have no files: 0.4 MiB

            shutil.rmtree(folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise RetryableError(f"cannot remove the claim's metadata: {error.strerror}", where=str(folder)) from error
        return True

    def claims(self) -> list[str]:
        """Return the uids of all claims with files. Raises RetryableError if the directory cannot be read."""
        try:
            return sorted(filter(is_uid, os.listdir(self.path)))  # noqa: PTH208 - names only
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RetryableError(f"cannot list the metadata files: {error.strerror}", where=str(self.path)) from error

    def _mount(self, metadata: ClaimMetadata, request: str) -> Mount:
        claim = metadata.claim
        for kind, name, pattern in (("request", request, _LABEL), ("claim", claim.name, _SUBDOMAIN)):
            if not pattern.fullmatch(name):
                raise PermanentError(
                    f"{kind} name {name!r} cannot be part of a path",
                    where=claim.with_uid,
                    hint="use lower-case letters, digits and '-'",
                )
        if metadata.pod_claim_name is not None:
            folder = f"resourceclaimtemplates/{metadata.pod_claim_name}"
        else:
            folder = f"resourceclaims/{claim.name}"
        path = f"{_CONTAINER_DIR}/{folder}/{request}/{self.driver}-metadata.json"
        return Mount(str(self.file(claim.uid, request)), path, options=("ro", "bind"))

    def _ensure(self, metadata: ClaimMetadata, item: RequestMetadata) -> bool:
        path = self.file(metadata.claim.uid, item.request)
        content = _read(path)
        generation = generation_of(content) if content is not None else None
        if generation is not None:
            if content == _document(self.driver, metadata, item, generation):
                return False
            self._write(path, _document(self.driver, metadata, item, generation + 1), in_place=True)
            log.info("device metadata changed", extra={"claim": metadata.claim.uid, "request": item.request})
            return False
        self._write(path, _document(self.driver, metadata, item, 1), in_place=content is not None)
        return True

    def _write(self, path: Path, data: bytes, *, in_place: bool) -> None:
        try:
            if in_place:
                _overwrite(path, data)
            else:
                _create(path, data)
        except OSError as error:
            raise RetryableError(
                f"cannot write the claim's metadata: {error.strerror}",
                where=str(path),
                hint="make room and make the directory writable for the agent",
            ) from error


def is_label(name: str) -> bool:
    """Return whether a name is a DNS label, and so safe in a path."""
    return bool(_LABEL.fullmatch(name))


def _with_edits(device: SpecDevice, edits: ContainerEdits) -> SpecDevice:
    return dataclasses.replace(device, edits=dataclasses.replace(device.edits, own=device.edits.own.merged(edits)))


def _document(driver: str, metadata: ClaimMetadata, request: RequestMetadata, generation: int) -> bytes:
    claim = metadata.claim
    identity = {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid, "generation": generation}
    value: dict[str, Any] = {"kind": "DeviceMetadata", "apiVersion": API_VERSION, "metadata": identity}
    if metadata.pod_claim_name is not None:
        value["podClaimName"] = metadata.pod_claim_name
    devices = [_device(driver, pool, device) for pool, device in request.devices]
    value["requests"] = [{"name": request.result, "devices": devices}]
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _device(driver: str, pool: str, device: Device) -> dict[str, Any]:
    value: dict[str, Any] = {"driver": driver, "pool": pool, "name": device.name}
    if device.attributes:
        value["attributes"] = device.attributes
    if network := network_data(device):
        value["networkData"] = network
    return value


class _Meta(msgspec.Struct):
    generation: int


class _Document(msgspec.Struct):
    metadata: _Meta


def generation_of(data: bytes) -> int | None:
    """Return the generation of a document that this agent wrote; None for anything else."""
    try:
        return decode_json(data, type=_Document).metadata.generation
    except msgspec.DecodeError:
        return None


def _read(path: Path) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        return os.read(handle, status.st_size + 1) if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return None
    finally:
        os.close(handle)


def _overwrite(path: Path, data: bytes) -> None:
    """Write first and truncate then: a concurrent reader finds the new document, followed by rest of the old one."""
    handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        atomic_file.write_all(handle, data)
        os.ftruncate(handle, len(data))
        os.fchmod(handle, _MODE)
    finally:
        os.close(handle)


def _create(path: Path, data: bytes) -> None:
    """Write a new file. Not synced: a file that is lost in a power failure is written again at start."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    atomic_file.write(path, data, mode=_MODE)
