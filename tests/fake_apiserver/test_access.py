"""Valid and invalid kubeconfigs and service accounts."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from dra_agent.errors import UsageError
from dra_agent.kube_client.config import Pem, load_client_config, service_account


def kubeconfig(
    path: Path, *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **top: Any
) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        **top,
    }
    path.write_text(json.dumps(config))
    return path


def test_paths_are_relative_to_the_kubeconfig_and_data_wins(tmp_path: Path) -> None:
    pem = b"-----BEGIN CERTIFICATE-----"
    user = {
        "client-certificate": "pki/agent.crt",
        "client-key-data": base64.b64encode(pem).decode(),
        "tokenFile": "token",
    }
    cluster = {
        "certificate-authority": "/etc/ca.crt",
        "certificate-authority-data": base64.b64encode(pem).decode(),
        "tls-server-name": "kubernetes",
    }
    config = load_client_config(kubeconfig(tmp_path / "kubeconfig", cluster=cluster, user=user), {})
    assert config.server == "https://10.0.0.1:6443"
    assert config.certificate == Pem(path=tmp_path / "pki/agent.crt") and config.key == Pem(data=pem)
    assert config.authority == Pem(data=pem) and config.server_name == "kubernetes"
    assert config.token_file == tmp_path / "token" and not config.insecure


def test_exec_credentials_are_parsed(tmp_path: Path) -> None:
    run = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "aws",
        "args": ["eks", "get-token"],
        "env": [{"name": "A", "value": "b"}],
        "interactiveMode": "Never",
    }
    config = load_client_config(kubeconfig(tmp_path / "kubeconfig", user={"exec": run}), {})
    assert config.command is not None
    assert (config.command.command, config.command.args, config.command.env) == (
        "aws",
        ("eks", "get-token"),
        (("A", "b"),),
    )


def test_a_relative_exec_command_is_resolved_like_kubectl(tmp_path: Path) -> None:
    def command(name: str) -> str:
        run = {"apiVersion": "client.authentication.k8s.io/v1", "command": name}
        found = load_client_config(kubeconfig(tmp_path / "kubeconfig", user={"exec": run}), {}).command
        assert found is not None
        return found.command

    assert command("bin/login") == str(tmp_path / "bin/login")
    assert command("./login") == str(tmp_path / "login")
    assert command("/opt/login") == "/opt/login"
    assert command("login") == "login", "found in PATH"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"current-context": "there"}, "no context 'there'"),
        ({"clusters": []}, "no cluster 'c'"),
        ({"users": None}, "no user 'u'"),
        ({"cluster": {"server": "10.0.0.1"}}, "not the address"),
        ({"cluster": {"proxy-url": "socks5://proxy"}}, "socks5:// is not supported"),
        ({"cluster": {"proxy-url": "http://proxy", "server": "http://10.0.0.1"}}, "needs a server with https"),
        ({"cluster": {"certificate-authority-data": "%%%"}}, "certificate-authority-data is not base64"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, "auth-provider"),
        ({"user": {"client-certificate": "a"}}, "needs its key"),
        ({"user": {"token": 7}}, "not a kubeconfig"),
    ],
)
def test_an_unusable_kubeconfig_is_reported_with_the_reason(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = kubeconfig(tmp_path / "kubeconfig", **change)
    with pytest.raises(UsageError, match=message) as error:
        load_client_config(path, {})
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "[", "just text", "clusters: 7", "\x00", "[" * 5000, "a: 2026-99-99", f"a: {'9' * 5000}"]
)
def test_other_content_is_reported_as_not_a_kubeconfig(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(UsageError, match="kubeconfig|YAML"):
        load_client_config(path, {})


def test_a_kubeconfig_that_is_not_text_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(b'{"users": [{"name": "\xff"}]}')
    with pytest.raises(UsageError, match="not valid YAML"):
        load_client_config(path, {})


def test_a_missing_kubeconfig_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_client_config(tmp_path / "none", {})


def test_a_kubeconfig_that_is_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="fifo: the kubeconfig cannot be read: Is a FIFO"):
        load_client_config(tmp_path / "fifo", {})


def test_in_cluster_configuration_is_used(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    config = service_account(environ, tmp_path)
    assert config.server == "https://[fd00::1]:443"
    assert config.token_file == tmp_path / "token" and config.authority == Pem(path=tmp_path / "ca.crt")
    (tmp_path / "token").unlink()
    with pytest.raises(UsageError, match="automountServiceAccountToken"):
        service_account(environ, tmp_path)


def test_without_any_configuration_the_error_names_the_flag(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--kubeconfig"):
        load_client_config(None, {})
    path = kubeconfig(tmp_path / "kubeconfig", user={"token": "t"})
    assert load_client_config(None, {"KUBECONFIG": str(path)}).token == "t"


def test_the_error_of_an_invalid_kubeconfig_hides_its_content(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("users:\n- name: u\n  user:\n    token: geheim: x\n")
    with pytest.raises(UsageError, match="not allowed here, line 4") as error:
        load_client_config(path, {})
    assert "geheim" not in str(error.value)


@pytest.mark.parametrize(
    "user",
    [
        {"token": "t"},
        {"tokenFile": "token"},
        {"username": "u", "password": "p"},
        {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "login"}},
    ],
    ids=lambda user: next(iter(user)),
)
@pytest.mark.parametrize(
    ("server", "insecure", "refused"),
    [
        ("http://10.0.0.1:8080", False, True),
        ("http://10.0.0.1:8080", True, True),
        ("http://localhost.example:8080", True, True),
        ("http://127.0.0.1:8080", False, True),
        ("http://127.0.0.1:8080", True, False),
        ("http://[::1]:8080", True, False),
        ("http://localhost:8080", True, False),
        ("https://10.0.0.1:6443", False, False),
    ],
)
def test_credentials_over_plain_http_only_to_loopback_on_request(
    tmp_path: Path, user: dict[str, Any], server: str, insecure: bool, refused: bool
) -> None:
    cluster = {"server": server, "insecure-skip-tls-verify": insecure}
    path = kubeconfig(tmp_path / "kubeconfig", user=user, cluster=cluster)
    if not refused:
        assert load_client_config(path, {}).server == server
        return
    with pytest.raises(UsageError, match="unencrypted") as error:
        load_client_config(path, {})
    assert str(path) in str(error.value) and "https://" in str(error.value)


def test_plain_http_is_allowed_without_credentials(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "kubeconfig", user={}, cluster={"server": "http://10.0.0.1:8001"})
    assert load_client_config(path, {}).server == "http://10.0.0.1:8001"
