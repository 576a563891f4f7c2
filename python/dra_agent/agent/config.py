"""The configuration: one struct, filled from flags, then `DRA_AGENT_*` variables, then a TOML file, then defaults.

It validates values and opens only the configuration file.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec

from dra_agent.agent.config_problems import ConfigError, ConfigProblem
from dra_agent.agent.user_state_dir import user_state_dir
from dra_agent.driver_root import AUTO
from dra_agent.errors import UsageError
from dra_agent.health.settings import HealthSettings
from dra_agent.inventory.settings import DEFAULT_DRIVER, InventorySettings
from dra_agent.reclaim.settings import ReclaimSettings
from dra_agent.recording import named_recording
from dra_agent.telemetry.settings import TelemetrySettings

if TYPE_CHECKING:
    from dra_agent.agent.config_file import ConfigFile


class ClaimSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Claims that no longer exist or have other devices, and claims that are prepared ahead."""

    release_gone_after: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 180.0
    """Seconds between two checks for prepared claims that were deleted or have other devices now; such claims are
    released. 0: never."""
    prepare_ahead_timeout: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 300.0
    """Seconds from the allocation within which a claim is prepared ahead; afterwards the scheduler chooses again."""


_Struct = TypeVar("_Struct", bound=msgspec.Struct)

PREFIX = "DRA_AGENT_"
SIMULATED_CDI = "cdi"
"""Below the state directory: where a simulated host's CDI specs are written unless a directory is named."""
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
DEFAULT_FILE = Path("/etc/dra-agent/config.toml")
"""The file of the systemd unit, and the default if no flag or variable names another one."""

# RFC 1123 subdomain, and 63 bytes at most, as the API demands of a driver's name.
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_DRIVER_CHARS = 63
_MAX_NODE_CHARS = 253
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\s]*):(\d{1,5})")


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be configured. Each field but the sections is also a flag and a variable."""

    standalone: bool = False
    kubeconfig: Path | None = None
    node_name: str = ""
    """Empty: the host's name."""
    driver_name: str = DEFAULT_DRIVER
    kubelet_dir: Path = Path("/var/lib/kubelet")
    cdi_dir: Path = Path("/var/run/cdi")
    state_dir: Path = Path("/var/lib/dra-agent")
    run_dir: Path = Path("/run/dra-agent")
    """The same for all agents of a host; emptied by a reboot."""
    sysfs_root: Path = Path("/sys")
    dev_root: Path = Path("/dev")
    net_root: Path | None = None
    """None: the agent is in the host's network namespace."""
    nvidia_driver_root: str = "/"
    """The root of NVIDIA's driver on the host: a directory, or "auto" (see `driver_root`)."""
    nvidia_driver_root_ctr_path: Path | None = None
    """The mount point of that root in the agent's container; None: the same path."""
    simulate: str | None = None
    metrics_address: str = ""
    health_address: str = ""
    """Empty: no metrics and no health endpoints."""
    metrics_tls_cert: Path | None = None
    metrics_tls_key: Path | None = None
    """Both or none: the metrics address is served with TLS."""
    metrics_token_file: Path | None = None
    """A bearer token for /metrics in each line; None: no token is required."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    pod_uid: str = ""
    """The uid of the agent's pod: it is part of the names of its sockets, so that old and new agent can overlap."""
    device_metadata: bool = False
    claim_status: Literal["off", "nics", "all"] | bool = "nics"
    """Devices that are described in a claim's status. True means all and False means off, for compatibility."""
    second_manager: Literal["refuse", "publish"] = "refuse"
    node_labels: Literal["off", "node", "nfd"] = "off"
    """Labels of the Node for the fabric: none, written to the Node, or a feature file of NFD."""
    nfd_features_dir: Path = Path("/etc/kubernetes/node-feature-discovery/features.d")
    inventory: InventorySettings = InventorySettings()
    reclaim: ReclaimSettings = ReclaimSettings()
    health: HealthSettings = HealthSettings()
    claims: ClaimSettings = ClaimSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @property
    def node(self) -> str:
        """The name of this node: pools are named after it. Raises ConfigError if the host's name cannot be one."""
        if (problem := self.node_problem) is not None:
            raise ConfigError([problem])
        return self.node_name or socket.gethostname().lower()

    @property
    def node_problem(self) -> ConfigProblem | None:
        """Why this host has no name for its node: none is configured, and the host's own cannot be one."""
        return None if self.node_name else _host_name_problem(socket.gethostname().lower())

    @property
    def host_label(self) -> str:
        """The host in titles: the name of its node, or the host's own; without one "(none)", as the kernel has it."""
        return self.node_name or socket.gethostname().lower() or "(none)"

    @property
    def is_metrics_address_open(self) -> bool:
        """Whether others than users of this host, and clients with a token, can read or overhear /metrics."""
        is_private = self.metrics_tls_cert is not None and self.metrics_token_file is not None
        return not is_private and not is_loopback(self.metrics_address)

    @property
    def names_claims_in_metrics(self) -> bool:
        """Whether /metrics has series of claims: `claim_labels`, or whether only clients with a token can read them.

        A loopback address alone does not protect them: every user of the host reaches it.
        """
        labels = self.telemetry.claim_labels
        is_protected = self.metrics_token_file is not None and not self.is_metrics_address_open
        return labels == "on" or (labels == "auto" and is_protected)

    @property
    def claim_status_families(self) -> frozenset[str] | None:
        """The families whose devices are written into status.devices; None means every family."""
        if self.claim_status in (True, "all"):
            return None
        return frozenset({"nic"}) if self.claim_status == "nics" else frozenset()

    @property
    def metadata_dir(self) -> Path:
        """The directory of device metadata files; container runtimes must see it at the same path."""
        return self.host_folder / "dra-device-metadata"

    @property
    def notice_dir(self) -> Path:
        """The directory of notice files; container runtimes must see it at the same path."""
        return self.host_folder / "notices"

    @property
    def host_folder(self) -> Path:
        """The agent's state directory that container runtimes see at the same path, in a pod too."""
        return self.state_dir if self.standalone else self.kubelet_dir / "plugins" / self.driver_name


HELP = {
    "standalone": "store, allocate and prepare claims without Kubernetes",
    "kubeconfig": "credentials for the API server (default: the service account of the pod)",
    "node_name": "name of this node (default: the host's name)",
    "driver_name": f"name of the DRA driver (default: {DEFAULT_DRIVER})",
    "kubelet_dir": "the kubelet's root directory",
    "cdi_dir": "where CDI specs are written (with --simulate: cdi below the state directory)",
    "state_dir": "where claims, the ledger and the socket are kept",
    "run_dir": "where the agents of one host record which of them owns a device (the same for all of them)",
    "sysfs_root": "used instead of /sys",
    "dev_root": "used instead of /dev",
    "net_root": "used instead of /proc/net of the host, for an agent in another network namespace",
    "nvidia_driver_root": "the root of NVIDIA's driver on the host: /run/nvidia/driver for the GPU Operator's driver "
    "container; auto: that one while a driver is there (default: /)",
    "nvidia_driver_root_ctr_path": "where the agent's container mounts that root (default: at the same path)",
    "simulate": "run on a simulated host, or on a recording of one (its directory), instead of this one",
    "metrics_address": "HOST:PORT for /metrics, /healthz and /readyz (default: none)",
    "health_address": "HOST:PORT for /healthz and /readyz alone, away from clients of /metrics (default: none)",
    "metrics_tls_cert": "PEM certificate, with its chain, of the metrics address (default: none, no TLS)",
    "metrics_tls_key": "PEM key of the certificate",
    "metrics_token_file": "bearer tokens for /metrics, one in each line (default: none is required)",
    "log_level": "the least severe messages that are logged",
    "log_format": "format of the lines of the log",
    "pod_uid": "uid of the agent's pod, for rolling updates (default: none)",
    "device_metadata": "mount files that describe the devices into containers",
    "claim_status": "devices that are described in a claim's status: off, nics or all",
    "second_manager": "refuse (do not publish) or publish devices that another driver or device plugin advertises too",
    "node_labels": "labels of the Node for NVLink domain, subnet, rack and switches: off, node, or nfd for a feature "
    "file of Node Feature Discovery",
    "nfd_features_dir": "the directory of feature files of Node Feature Discovery",
}
_METAVARS = {"DIR": ("_dir", "_root", "_path"), "FILE": ("_tls_cert", "_tls_key", "_token_file")}
_SWITCHES = {field.name for field in msgspec.structs.fields(Config) if field.type is bool}
_WORDS = {
    field.name: "|".join(get_args(field.type))
    for field in msgspec.structs.fields(Config)
    if get_origin(field.type) is Literal
}
"""The words of a key that accepts no others."""
HOST_FLAGS = (
    *("sysfs_root", "dev_root", "nvidia_driver_root", "nvidia_driver_root_ctr_path"),
    *("simulate", "state_dir", "node_name", "driver_name"),
)
"""Flags of commands that read a host."""


def add_flags(parser: argparse.ArgumentParser, names: Iterable[str] = HELP) -> None:
    """Add `--config` and the named flags; none has a default, so that `load_config` detects which were set."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"TOML file (default: ${CONFIG_VARIABLE}, or {DEFAULT_FILE})"
    )
    for name in names:
        flag = "--" + name.replace("_", "-")
        if name == "claim_status":
            # Formerly a switch: without a value it has its former meaning.
            parser.add_argument(flag, nargs="?", const="all", metavar="off|nics|all", default=None, help=HELP[name])
            parser.add_argument("--no-claim-status", dest=name, action="store_const", const="off", default=None)
        elif name in _SWITCHES:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=HELP[name])
        else:
            metavar = "PROFILE|DIR" if name == "simulate" else _WORDS.get(name, "VALUE")
            for kind, endings in _METAVARS.items():
                metavar = kind if name.endswith(endings) else metavar
            parser.add_argument(flag, metavar=metavar, default=None, help=HELP[name])


_WARNED = "has_config_warning"
"""Attribute of the arguments of a command that has printed the problems of the file."""


class LoadedConfig(msgspec.Struct, frozen=True):
    """A valid configuration, and the origin of each value."""

    config: Config
    origins: dict[str, str]
    """By key (`log_level`): the flag, the variable, or how it follows from others. Other keys: of file or defaults."""
    file: Path | None
    """The file that was read."""
    file_lines: dict[str, str]
    """FILE:LINE by the keys that the file sets (`health.fatal`)."""
    ignored: tuple[ConfigProblem, ...]
    """Keys of earlier versions in the file."""
    problems: tuple[ConfigProblem, ...] = ()
    """Those of the file, for a command that does without the values that have them."""

    def origin(self, key: str) -> str:
        """Return the origin of a key's value; "default" if it is not set."""
        return self.origins.get(key) or self.file_lines.get(key) or "default"


def checksum(config: Config) -> int:
    """Return the CRC-32 of the values: the same for the same configuration, independent of its origins."""
    return zlib.crc32(msgspec.json.encode(config, enc_hook=str, order="sorted"))


def load_config(
    args: argparse.Namespace, environment: Mapping[str, str] | None = None, *, below: Config | None = None
) -> Config:
    """Return the configuration for a command; a file that no agent could start with costs a warning only.

    See `load` with `is_agent=False`.
    """
    loaded = load(args, environment, below=below, is_agent=False)
    if loaded.problems and not getattr(args, _WARNED, False):
        import sys

        setattr(args, _WARNED, True)  # a command loads it several times
        for problem in loaded.problems:
            print(f"warning: configuration ignored: {problem}", file=sys.stderr)
    return loaded.config


def load(
    args: argparse.Namespace,
    environment: Mapping[str, str] | None = None,
    *,
    below: Config | None = None,
    needs_node: bool = False,
    is_agent: bool = True,
) -> LoadedConfig:
    """Build the configuration: flag over variable over file over default.

    The file is that of `--config` or its variable, or the unit's if it exists; an empty variable means no file.
    `below` is used instead of file and defaults. With `needs_node`, as for a running agent, a host whose name cannot be
    that of a node is one more problem; `Config.node` raises it for others.

    With `is_agent=False`, for commands, defaults replace the values of the file that have problems: an agent that runs
    with an earlier file must be reachable. A file that a flag names must be valid.

    Raises:
        ConfigError: It has all problems, each with the flag, variable, or file, line and key, and the valid values.
    """
    variables = os.environ if environment is None else environment
    file = None if below is not None else _file(args, variables)
    problems = [] if file is None else file.problems
    config = below or (Config() if file is None else file.config)
    origins: dict[str, str] = {}
    for name in HELP:
        flag = "--" + name.replace("_", "-")
        variable = PREFIX + name.upper()
        if getattr(args, name, None) is not None:
            origins[name] = flag
            config = _with(config, name, getattr(args, name), flag, problems)
        elif variables.get(variable, "") != "":
            origins[name] = variable
            config = _with(config, name, variables[variable], variable, problems)
    keys = file.set_keys if file is not None else frozenset()
    if below is not None:
        # It has the values that follow from its own settings.
        keys |= {"state_dir"} if "simulate" in origins else {"state_dir", "cdi_dir"}
    config = _derived(config, variables, origins, keys)
    replaced: set[str] = set()

    def check(name: str, call: Callable[[str], object]) -> None:
        """Call it with the place of a key; an error is one more problem."""
        flag = "--" + name.replace("_", "-") if name in HELP else name
        origin, line = (flag, None) if file is None else file.place(name)
        origin, line = (origins[name], None) if name in origins else (origin, line)
        try:
            call(origin)
        except UsageError as error:
            key = "" if name in origins or file is None else name
            if key:
                replaced.add(key)
            problems.append(ConfigProblem(origin, error.message, key, line, error.hint))

    check("driver_name", lambda place: _check_name(config.driver_name, _MAX_DRIVER_CHARS, place))
    if config.node_name:
        check("node_name", lambda place: _check_name(config.node_name, _MAX_NODE_CHARS, place))
    elif needs_node and (problem := config.node_problem) is not None:
        problems.append(problem)
    for name in ("metrics_address", "health_address"):
        if address := getattr(config, name):
            check(name, partial(listen_address, address))
    for one, other in (("metrics_tls_cert", "metrics_tls_key"), ("metrics_tls_key", "metrics_tls_cert")):
        if getattr(config, one) is not None and getattr(config, other) is None:
            check(one, partial(_refuse_without, other))
    _check_driver_root(config, check)
    _check_for_start(config, check)
    if file is not None:
        file.check_rules(config.driver_name)
    problems.sort(key=lambda one: (one.line is None, one.line or 0))
    is_tolerated = not is_agent and file is not None and getattr(args, "config", None) is None
    if any(not is_tolerated or file is None or problem.origin != str(file.path) for problem in problems):
        raise ConfigError(problems)
    defaults = {name: getattr(Config(), name) for name in replaced if name in HELP}
    config = _with_absolute_paths(msgspec.structs.replace(config, **defaults))
    if file is None:
        return LoadedConfig(config, origins, None, {}, ())
    places = {key: file.place(key) for key in file.set_keys}
    lines = {key: origin if line is None else f"{origin}:{line}" for key, (origin, line) in places.items()}
    return LoadedConfig(config, origins, file.path, lines, tuple(file.ignored), tuple(problems))


def _with_absolute_paths(values: _Struct) -> _Struct:
    """Resolve paths against the working directory: other processes of the agent, and its records, have another one."""
    changes: dict[str, Any] = {}
    for field in msgspec.structs.fields(values):
        value = getattr(values, field.name)
        if isinstance(value, msgspec.Struct):
            changes[field.name] = _with_absolute_paths(value)
        elif isinstance(value, Path):
            changes[field.name] = value.absolute()
    return msgspec.structs.replace(values, **changes)


def _check_for_start(config: Config, check: Callable[[str, Callable[[str], object]], None]) -> None:
    """Run the checks of the parts of the agent before they start; a value that is not set costs no import."""
    if config.reclaim.endpoint != ReclaimSettings().endpoint:
        from dra_agent.reclaim.signals.http import MetadataService

        check("reclaim.endpoint", lambda place: MetadataService(config.reclaim.endpoint))
    if config.pod_uid and not config.standalone:
        from dra_agent.agent.rolling_update import check_uid

        check("pod_uid", lambda place: check_uid(config.pod_uid))


def _derived(
    config: Config, variables: Mapping[str, str], origins: dict[str, str], other_keys: Collection[str]
) -> Config:
    """Set the values that follow from other settings, unless they are set: in `origins` or `other_keys`."""
    is_cdi_dir_set = "cdi_dir" in origins or "cdi_dir" in other_keys or config.cdi_dir != Config().cdi_dir
    if "state_dir" not in origins and "state_dir" not in other_keys:
        user_dir = user_state_dir(variables, config.state_dir, is_simulated=config.simulate is not None)
        if user_dir is not None:
            origins["state_dir"] = "default without root"
            config = msgspec.structs.replace(config, state_dir=user_dir)
    if config.simulate is not None and (recorded := named_recording(config.simulate)) is not None:
        # Commands compare it with the agent's, which may run in another directory.
        config = msgspec.structs.replace(config, simulate=str(recorded))
    if config.simulate is not None and not is_cdi_dir_set:
        # Container runtimes read the default directory: its specs must describe devices that exist.
        origins["cdi_dir"] = "default with --simulate"
        config = msgspec.structs.replace(config, cdi_dir=config.state_dir / SIMULATED_CDI)
    return config


def _check_driver_root(config: Config, check: Callable[[str, Callable[[str], object]], None]) -> None:
    """Reject paths that can never be the root of a driver. A missing directory may appear later."""
    setting, seen = config.nvidia_driver_root, config.nvidia_driver_root_ctr_path
    exists = config.simulate is None
    if setting != AUTO:
        hint = 'write an absolute path such as "/run/nvidia/driver", "/", or "auto"'
        is_seen = exists and seen is None
        check("nvidia_driver_root", lambda place: _check_directory(setting, place, hint, exists=is_seen))
    if seen is not None:
        mount = str(seen)
        hint_mount = "write the absolute path at which the agent's container mounts the root"
        check("nvidia_driver_root_ctr_path", lambda place: _check_directory(mount, place, hint_mount, exists=exists))


def _check_directory(text: str, where: str, hint: str, *, exists: bool) -> None:
    if not text.startswith("/"):
        raise UsageError(f"{text!r} is not an absolute path", where=where, hint=hint)
    if ".." in text.split("/"):
        raise UsageError(f"{text!r} contains '..'", where=where, hint=hint)
    if "\0" in text:
        raise UsageError(f"{text!r} contains a NUL character", where=where, hint=hint)
    if exists and Path(text).exists() and not Path(text).is_dir():
        raise UsageError(f"{text!r} is a file, not a directory", where=where, hint=hint)


def _file(args: argparse.Namespace, variables: Mapping[str, str]) -> ConfigFile | None:
    from dra_agent.agent.config_file import ConfigFile

    named = getattr(args, "config", None) or variables.get(CONFIG_VARIABLE)
    if named:
        return ConfigFile(Path(named))
    return ConfigFile(DEFAULT_FILE) if CONFIG_VARIABLE not in variables and DEFAULT_FILE.exists() else None


def watched_file(args: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the file that `load` reads, also if it does not exist yet; None: the variable is empty."""
    variables = os.environ if environment is None else environment
    named = getattr(args, "config", None) or variables.get(CONFIG_VARIABLE)
    return Path(named) if named else None if CONFIG_VARIABLE in variables else DEFAULT_FILE


def _refuse_without(other: str, where: str) -> None:
    raise UsageError(f"it is set, and {other} is not", where=where, hint="set both for TLS, or none")


def listen_address(text: str, flag: str = "--metrics-address") -> tuple[str, int]:
    """Split HOST:PORT (IPv6 in brackets, no host for every address); UsageError for anything else."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 <= int(match[2]) <= 65535:
        raise UsageError(f"{text!r} is not HOST:PORT", where=flag, hint="write for example 127.0.0.1:9464")
    return match[1].strip("[]"), int(match[2])


def is_loopback(address: str) -> bool:
    """Return whether HOST:PORT is reachable only from this host: an address of the loopback range, or localhost."""
    import ipaddress  # only where an endpoint depends on it

    host = listen_address(address)[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _with(config: Config, name: str, value: Any, where: str, problems: list[ConfigProblem]) -> Config:
    expected = Config.__annotations__[name]
    field = next(field for field in msgspec.structs.fields(Config) if field.name == name)
    try:
        converted = msgspec.convert(value, field.type, strict=False, dec_hook=to_path)
    except msgspec.ValidationError as error:
        problems.append(ConfigProblem(where, f"{value!r}: {error}", hint=f"it must be {_kind(expected)}"))
        return config
    return msgspec.structs.replace(config, **{name: converted})


def to_path(kind: type, value: object) -> Path:
    """Convert types that msgspec does not know; raises ValueError unless the value is a path."""
    if kind is not Path or not isinstance(value, str) or not value:
        raise ValueError("expected a path")
    return Path(value)


def _check_name(name: str, limit: int, where: str, hint: str = "use lower-case letters, digits, '-' and '.'") -> None:
    if len(name) > limit or not _SUBDOMAIN.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a DNS subdomain of at most {limit} characters",
            where=where,
            hint=hint,
        )


def _host_name_problem(name: str) -> ConfigProblem | None:
    where = "the host's name"
    try:
        _check_name(name, _MAX_NODE_CHARS, where, "choose another with --node-name")
    except UsageError as error:
        return ConfigProblem(where, error.message, hint=error.hint)
    return None


def _kind(annotation: str) -> str:
    if annotation.startswith("Literal"):
        return "one of " + annotation.removeprefix("Literal[").rstrip("]").replace('"', "")
    return {"bool": "true or false", "Path": "a path", "Path | None": "a path"}.get(annotation, "text")
