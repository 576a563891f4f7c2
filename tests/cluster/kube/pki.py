"""The certificates and keys of a cluster, created with the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

DAYS = "3650"


@dataclass(frozen=True)
class Keys:
    """The paths of the certificates and keys."""

    authority: Path
    """Signs the API server's certificate and its client certificate for kubelets; clients trust it."""
    server: tuple[Path, Path]
    """The API server's certificate and key."""
    client: tuple[Path, Path]
    """The client certificate of the API server for kubelets (`kubectl logs`, `exec`)."""
    service_accounts: Path
    """Signs the tokens of service accounts."""


def make(directory: Path, api_address: str) -> Keys:
    """Create all of them in `directory`."""
    directory.mkdir(mode=0o700, parents=True)
    authority, authority_key = directory / "ca.crt", directory / "ca.key"
    _key(authority_key)
    _openssl(
        "req", "-x509", "-new", "-key", authority_key, "-days", DAYS, "-subj", "/CN=dra-agent test cluster",
        "-addext", "keyUsage=critical,keyCertSign,digitalSignature", "-out", authority,
    )  # fmt: skip
    names = f"subjectAltName=IP:{api_address},IP:127.0.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default.svc"
    server = _signed(directory, "apiserver", "/CN=kube-apiserver", f"{names}\nextendedKeyUsage=serverAuth")
    # Group system:masters: the kubelet asks the API server whether this user may read logs.
    client = _signed(directory, "kubelet-client", "/O=system:masters/CN=kube-apiserver", "extendedKeyUsage=clientAuth")
    accounts = directory / "service-accounts.key"
    _key(accounts)
    return Keys(authority, server, client, accounts)


def sign_service(authority: Path, service: str, namespace: str) -> tuple[Path, Path]:
    """Return a certificate of a Service and its key; `authority` is the directory of `make`, which gets both."""
    name = f"{service}.{namespace}.svc"
    return _signed(authority, name, f"/CN={service}", f"subjectAltName=DNS:{name}\nextendedKeyUsage=serverAuth")


def _signed(directory: Path, name: str, subject: str, extensions: str) -> tuple[Path, Path]:
    key, request, certificate = (directory / f"{name}.{kind}" for kind in ("key", "csr", "crt"))
    details = directory / f"{name}.ext"
    details.write_text(extensions + "\n")
    _key(key)
    _openssl("req", "-new", "-key", key, "-subj", subject, "-out", request)
    _openssl(
        "x509", "-req", "-in", request, "-CA", directory / "ca.crt", "-CAkey", directory / "ca.key", "-CAcreateserial",
        "-days", DAYS, "-extfile", details, "-out", certificate,
    )  # fmt: skip
    return certificate, key


def _key(path: Path) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
    path.chmod(0o600)


def _openssl(*arguments: object) -> None:
    result = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"openssl {arguments[0]}: {result.stderr}"
