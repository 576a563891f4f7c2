"""A container image around Debian's busybox-static, as an OCI tar: no registry is needed."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .prerequisites import BUSYBOX

NAME = "localhost/busybox:1"
IDLE = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"
"""Idles until SIGTERM and then ends at once: the process of the sandbox, and of pods that only wait."""


def write(path: Path, *, name: str = NAME) -> None:
    """Write the image as an OCI layout in a tar, for `ctr images import`."""
    pack(path, name, [busybox()], {"Entrypoint": ["/bin/sh", "-c", IDLE], "Env": ["PATH=/bin"]})


def pack(path: Path, name: str, layers: Sequence[bytes], config: Mapping[str, object]) -> None:
    """Write an image of these layers, each a tar, with the configuration of its containers."""
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    configuration = _json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor(configuration, "application/vnd.oci.image.config.v1+json"),
            "layers": [_descriptor(blob, "application/vnd.oci.image.layer.v1.tar") for blob in layers],
        }
    )
    entry = _descriptor(manifest, "application/vnd.oci.image.manifest.v1+json")
    entry["annotations"] = {"io.containerd.image.name": name}
    entry["platform"] = {"architecture": architecture, "os": "linux"}
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [entry]}),
    }
    files |= {f"blobs/sha256/{_digest(blob)[7:]}": blob for blob in (*layers, configuration, manifest)}
    with tarfile.open(path, "w") as tar:
        for file, content in files.items():
            _add(tar, file, content)


def busybox() -> bytes:
    """Return a layer with /bin/busybox, a link per applet, /tmp and an /etc with a root user."""
    applets = subprocess.run([str(BUSYBOX), "--list"], check=True, capture_output=True, text=True).stdout.split()
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        for directory in ("bin", "tmp", "etc", "dev", "proc", "sys", "var", "var/run"):
            member = tarfile.TarInfo(directory)
            member.type, member.mode = tarfile.DIRTYPE, 0o1777 if directory == "tmp" else 0o755
            tar.addfile(member)
        _add(tar, "bin/busybox", BUSYBOX.read_bytes(), 0o755)
        _add(tar, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\n")
        for applet in sorted(set(applets) - {"busybox"}):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return memory.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    tar.addfile(member, io.BytesIO(content))


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _descriptor(content: bytes, media_type: str) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}
