"""Kubeconfigs and service accounts, good and bad."""

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


def test_files_are_beside_the_kubeconfig_and_data_wins(tmp_path: Path) -> None:
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
    access = load_client_config(kubeconfig(tmp_path / "kubeconfig", cluster=cluster, user=user), {})
    assert access.server == "https://10.0.0.1:6443"
    assert access.certificate == Pem(path=tmp_path / "pki/agent.crt") and access.key == Pem(data=pem)
    assert access.authority == Pem(data=pem) and access.server_name == "kubernetes"
    assert access.token_file == tmp_path / "token" and not access.insecure


def test_a_command_for_credentials_is_read(tmp_path: Path) -> None:
    run = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "aws",
        "args": ["eks", "get-token"],
        "env": [{"name": "A", "value": "b"}],
        "interactiveMode": "Never",
    }
    access = load_client_config(kubeconfig(tmp_path / "kubeconfig", user={"exec": run}), {})
    assert access.command is not None
    assert (access.command.command, access.command.args, access.command.env) == (
        "aws",
        ("eks", "get-token"),
        (("A", "b"),),
    )


def test_a_command_with_a_slash_is_beside_the_kubeconfig_as_for_kubectl(tmp_path: Path) -> None:
    def command(name: str) -> str:
        run = {"apiVersion": "client.authentication.k8s.io/v1", "command": name}
        found = load_client_config(kubeconfig(tmp_path / "kubeconfig", user={"exec": run}), {}).command
        assert found is not None
        return found.command

    assert command("bin/login") == str(tmp_path / "bin/login")
    assert command("./login") == str(tmp_path / "login")
    assert command("/opt/login") == "/opt/login"
    assert command("login") == "login", "of the PATH"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"current-context": "there"}, "no context 'there'"),
        ({"clusters": []}, "no cluster 'c'"),
        ({"users": None}, "no user 'u'"),
        ({"cluster": {"server": "10.0.0.1"}}, "not the address"),
        ({"cluster": {"proxy-url": "http://proxy"}}, "proxy"),
        ({"cluster": {"certificate-authority-data": "%%%"}}, "certificate-authority-data is not base64"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, "auth-provider"),
        ({"user": {"client-certificate": "a"}}, "needs its key"),
        ({"user": {"token": 7}}, "not a kubeconfig"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    path = kubeconfig(tmp_path / "kubeconfig", **change)
    with pytest.raises(UsageError, match=complaint) as caught:
        load_client_config(path, {})
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "[", "just text", "clusters: 7", "\x00", "[" * 5000])
def test_what_is_no_kubeconfig_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(UsageError, match="kubeconfig|YAML"):
        load_client_config(path, {})


def test_a_kubeconfig_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_client_config(tmp_path / "none", {})


def test_a_kubeconfig_that_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="fifo: the kubeconfig cannot be read: Is a FIFO"):
        load_client_config(tmp_path / "fifo", {})


def test_the_pod_knows_its_cluster(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = service_account(environ, tmp_path)
    assert access.server == "https://[fd00::1]:443"
    assert access.token_file == tmp_path / "token" and access.authority == Pem(path=tmp_path / "ca.crt")
    (tmp_path / "token").unlink()
    with pytest.raises(UsageError, match="automountServiceAccountToken"):
        service_account(environ, tmp_path)


def test_without_either_the_user_is_told_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--kubeconfig"):
        load_client_config(None, {})
    path = kubeconfig(tmp_path / "kubeconfig", user={"token": "t"})
    assert load_client_config(None, {"KUBECONFIG": str(path)}).token == "t"


def test_a_kubeconfig_that_cannot_be_read_does_not_show_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("users:\n- name: u\n  user:\n    token: geheim: x\n")
    with pytest.raises(UsageError, match="not allowed here, line 4") as caught:
        load_client_config(path, {})
    assert "geheim" not in str(caught.value)


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
def test_no_credentials_go_over_plain_http_but_to_loopback_where_that_is_asked_for(
    tmp_path: Path, user: dict[str, Any], server: str, insecure: bool, refused: bool
) -> None:
    cluster = {"server": server, "insecure-skip-tls-verify": insecure}
    path = kubeconfig(tmp_path / "kubeconfig", user=user, cluster=cluster)
    if not refused:
        assert load_client_config(path, {}).server == server
        return
    with pytest.raises(UsageError, match="unencrypted") as caught:
        load_client_config(path, {})
    assert str(path) in str(caught.value) and "https://" in str(caught.value)


def test_a_server_without_credentials_may_be_asked_over_plain_http(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "kubeconfig", user={}, cluster={"server": "http://10.0.0.1:8001"})
    assert load_client_config(path, {}).server == "http://10.0.0.1:8001"
