"""The API server's address and the agent's identity: a kubeconfig, or the service account of the agent's pod."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from dra_agent import user_file, yaml_text
from dra_agent.errors import UsageError
from dra_agent.json_decode import decode_json
from dra_agent.kube_client.proxy import Proxy, parse_proxy, proxy_of_environment

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_FILE_BYTES = 16 << 20
"""Bound of a kubeconfig, and of each file that it names: certificates may be embedded."""
_EXEC_EXTENSION = "client.authentication.k8s.io/exec"


class Pem(NamedTuple):
    """A certificate or key: in a file that may be replaced at any time, or in the kubeconfig itself."""

    path: Path | None = None
    data: bytes | None = None


class ExecCommand(msgspec.Struct, frozen=True):
    """A command that prints credentials (client.authentication.k8s.io)."""

    command: str
    api_version: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    provide_cluster_info: bool = False
    """Whether the command needs the cluster information (provideClusterInfo)."""
    cluster_config: Any = None
    """Configuration of the kubeconfig's cluster for such commands."""


class ClientConfig(msgspec.Struct, frozen=True):
    """The address of an API server and the identity of the client. Neither was tried yet."""

    server: str
    """https://host:port, perhaps with a path."""
    source: str
    """The file that it was read from, for error messages."""
    authority: Pem | None = None
    """The trusted CA certificates; None: those of the host."""
    insecure: bool = False
    server_name: str | None = None
    token: str | None = None
    token_file: Path | None = None
    certificate: Pem | None = None
    key: Pem | None = None
    command: ExecCommand | None = None
    basic: tuple[str, str] | None = None
    namespace: str = "default"
    """Which a command is about that names none."""
    proxy_url: str | None = None
    """As the kubeconfig has it."""
    proxy: Proxy | None = None
    """Of the kubeconfig or the environment; None: connections are direct."""

    @property
    def is_local(self) -> bool:
        """Whether the server has a loopback address."""
        return _is_loopback(urlsplit(self.server).hostname or "")


class _Extension(msgspec.Struct):
    name: str
    extension: Any = None


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    extensions: list[_Extension] = []


class _Env(msgspec.Struct):
    name: str
    value: str


class _Exec(msgspec.Struct, rename="camel"):
    command: str
    api_version: str
    args: list[str] | None = None
    env: list[_Env] | None = None
    provide_cluster_info: bool = False


class _User(msgspec.Struct, rename="kebab"):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    username: str | None = None
    password: str | None = None
    exec: _Exec | None = None
    auth_provider: dict[str, Any] | None = None


class _Context(msgspec.Struct):
    cluster: str
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct):
    name: str
    user: _User = msgspec.field(default_factory=_User)


class _NamedContext(msgspec.Struct):
    name: str
    context: _Context


class _Kubeconfig(msgspec.Struct):
    clusters: list[_NamedCluster] = []
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] = []
    current_context: str = msgspec.field(name="current-context", default="")


class NoClusterError(UsageError):
    """Neither a kubeconfig nor a service account names an API server."""


def load_client_config(
    kubeconfig: Path | None, environ: Mapping[str, str] = os.environ, *, context: str | None = None
) -> ClientConfig:
    """Read the kubeconfig; without one the pod's service account; without that the files that $KUBECONFIG names.

    `context` is one of a kubeconfig; without a name its current one. A pod has none: $KUBECONFIG is read then.
    The proxy is that of the kubeconfig, otherwise that of the environment.

    Raises NoClusterError if none exists, UsageError if it cannot be used.
    """
    config = _find_client_config(kubeconfig, environ, context)
    if config.proxy is None and (proxy := proxy_of_environment(config.server, environ)) is not None:
        return msgspec.structs.replace(config, proxy=proxy)
    return config


def _find_client_config(kubeconfig: Path | None, environ: Mapping[str, str], context: str | None) -> ClientConfig:
    if kubeconfig is not None:
        return read_kubeconfig(kubeconfig, context=context)
    if environ.get("KUBERNETES_SERVICE_HOST") and context is None:
        return service_account(environ)
    if environ.get("KUBECONFIG"):
        named = [Path(entry) for entry in environ["KUBECONFIG"].split(os.pathsep) if entry]
        # As in client-go, of several files some may be missing.
        existing = [path for path in named if path.exists()]
        return read_kubeconfig(*(existing or named[:1]), context=context)
    raise NoClusterError(
        "the API server is not configured: no kubeconfig and no pod service account",
        hint="give --kubeconfig FILE",
    )


def service_account(environ: Mapping[str, str], directory: Path = SERVICE_ACCOUNT) -> ClientConfig:
    """Return the configuration of the pod that the agent runs in. The token is a file that the kubelet replaces.

    Raises UsageError without a token.
    """
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = directory / "token"
    if not token.exists():
        raise UsageError(
            "the pod has no service account token", where=str(token), hint="set automountServiceAccountToken: true"
        )
    return ClientConfig(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        source=str(directory),
        authority=Pem(path=directory / "ca.crt"),
        token_file=token,
        namespace=_own_namespace(directory),
    )


def _own_namespace(directory: Path) -> str:
    try:
        return user_file.read(directory / "namespace", MAX_FILE_BYTES).decode().strip() or "default"
    except (OSError, UnicodeDecodeError):
        return "default"


def read_kubeconfig(*paths: Path, context: str | None = None) -> ClientConfig:
    """Read a context of a kubeconfig, or of several that are merged as in client-go: the first entry of a name wins.

    Raises UsageError if one is invalid.
    """
    files = [(path, _parse(path)) for path in paths]
    where = os.pathsep.join(map(str, paths))
    wanted = context or next((config.current_context for _, config in files if config.current_context), "")
    contexts = [entry for _, config in files for entry in config.contexts]
    chosen = next((entry.context for entry in contexts if entry.name == wanted), None)
    if chosen is None:
        names = ", ".join(dict.fromkeys(entry.name for entry in contexts))
        hint = "set current-context" if context is None else f"its contexts are {names or 'none'}"
        raise UsageError(f"the kubeconfig has no context {wanted!r}", where=where, hint=hint)
    clusters = [(path, entry) for path, config in files for entry in config.clusters]
    users = [(path, entry) for path, config in files for entry in config.users or ()]
    cluster = next(((path, entry.cluster) for path, entry in clusters if entry.name == chosen.cluster), None)
    user = next(((path, entry.user) for path, entry in users if entry.name == chosen.user), None)
    if cluster is None or (user is None and chosen.user):
        missing = f"cluster {chosen.cluster!r}" if cluster is None else f"user {chosen.user!r}"
        raise UsageError(f"the kubeconfig has no {missing}", where=where)
    return _client_config(*cluster, *(user or (cluster[0], _User())), chosen.namespace)


def _parse(path: Path) -> _Kubeconfig:
    where = str(path)
    try:
        content = user_file.read(path, MAX_FILE_BYTES)
    except OSError as error:
        raise UsageError(f"the kubeconfig cannot be read: {error.strerror}", where=where) from error
    # JSON is YAML too; importing the parser of YAML takes 0.8 MiB for as long as the agent runs.
    with suppress(msgspec.MsgspecError):
        return decode_json(content, type=_Kubeconfig)
    import yaml

    try:
        return msgspec.convert(yaml_text.load(content), _Kubeconfig)
    except yaml.YAMLError as error:
        # Its own text shows the line, and in that line may be a token.
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "unreadable"
        raise UsageError(f"not valid YAML: {problem}{line}", where=where) from None
    except RecursionError as error:
        raise UsageError("not a kubeconfig: it is nested too deeply", where=where) from error
    except msgspec.ValidationError as error:
        raise UsageError(f"not a kubeconfig: {error}", where=where) from error
    except ValueError as error:  # of a date that does not exist, or a number with too many digits
        raise UsageError("not a kubeconfig: it has a date or number that cannot be read", where=where) from error


def _client_config(cluster_path: Path, cluster: _Cluster, path: Path, user: _User, namespace: str) -> ClientConfig:
    """Combine a cluster and a user; files that they name are relative to the file that each is defined in."""
    where = str(cluster_path)
    if user.auth_provider is not None:
        raise UsageError("auth-provider is not supported", where=where, hint="use a token, a certificate or exec")
    parts = urlsplit(cluster.server)
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise UsageError(f"{cluster.server!r} is not the address of an API server", where=where)
    if parts.scheme == "http":
        _check_plain_http(cluster, user, parts.hostname, where)
    proxy = parse_proxy(cluster.proxy_url, where=f"{where}: proxy-url") if cluster.proxy_url else None
    if proxy is not None and parts.scheme == "http":
        # Without TLS, it would read the requests.
        raise UsageError("a proxy (proxy-url) needs a server with https://", where=where, hint="remove proxy-url")
    certificate = _pem(path, user.client_certificate, user.client_certificate_data, "client-certificate")
    key = _pem(path, user.client_key, user.client_key_data, "client-key")
    if (certificate is None) != (key is None):
        raise UsageError("a client certificate needs its key, and a key its certificate", where=where)
    return ClientConfig(
        server=cluster.server.rstrip("/"),
        source=where,
        authority=_pem(
            cluster_path, cluster.certificate_authority, cluster.certificate_authority_data, "certificate-authority"
        ),
        insecure=cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name,
        token=user.token or None,
        token_file=path.parent / user.token_file if user.token_file else None,
        certificate=certificate,
        key=key,
        command=None if user.exec is None else _command(path, user.exec, cluster),
        basic=(user.username, user.password) if user.username and user.password else None,
        namespace=namespace or "default",
        proxy_url=cluster.proxy_url or None,
        proxy=proxy,
    )


def _check_plain_http(cluster: _Cluster, user: _User, host: str, where: str) -> None:
    """Refuse to send credentials where others on the network can read them."""
    if not (user.token or user.token_file or user.exec or user.password):
        return
    if cluster.insecure_skip_tls_verify and _is_loopback(host):
        return
    raise UsageError(
        f"the user's credentials would be sent unencrypted to {cluster.server}",
        where=where,
        hint="use https://; on loopback only, set insecure-skip-tls-verify: true in the cluster entry",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _command(path: Path, run: _Exec, cluster: _Cluster) -> ExecCommand:
    """A command with a slash is relative to the kubeconfig, another is searched in PATH, as in client-go."""
    extensions = {entry.name: entry.extension for entry in cluster.extensions}
    return ExecCommand(
        command=str(path.parent / run.command) if "/" in run.command else run.command,
        api_version=run.api_version,
        args=tuple(run.args or ()),
        env=tuple((entry.name, entry.value) for entry in run.env or ()),
        provide_cluster_info=run.provide_cluster_info,
        cluster_config=extensions.get(_EXEC_EXTENSION),
    )


def _pem(path: Path, file: str | None, data: str | None, key: str) -> Pem | None:
    """Data takes precedence over a file, as in client-go; a file is relative to the kubeconfig."""
    if data:
        try:
            return Pem(data=base64.b64decode(data, validate=True))
        except binascii.Error as error:
            raise UsageError(f"{key}-data is not base64", where=str(path)) from error
    return Pem(path=path.parent / file) if file else None
