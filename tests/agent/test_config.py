"""Precedence of flags, variables, file and defaults, and one clear message for every error."""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path

import pytest

from dra_agent.agent import config as config_module
from dra_agent.agent.config import HELP, Config, add_flags, is_loopback, listen_address, load, load_config
from dra_agent.agent.config_keys import config_keys
from dra_agent.agent.config_problems import ConfigError
from dra_agent.agent.user_state_dir import user_state_dir
from dra_agent.errors import UsageError


def configure(*arguments: str, variables: dict[str, str] | None = None) -> Config:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return load_config(parser.parse_args(arguments), variables or {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_the_defaults_are_complete() -> None:
    config = configure()
    assert config.driver_name == "dra-agent.internal"
    assert config.cdi_dir == Path("/var/run/cdi")
    assert config.node
    assert not config.standalone


def test_a_flag_overrides_a_variable_which_overrides_the_file(file: Path) -> None:
    file.write_text('node-name = "of-file"\nlog_level = "debug"\nstate-dir = "/file"\nstandalone = true\n')
    variables = {
        "DRA_AGENT_NODE_NAME": "of-variable",
        "DRA_AGENT_STATE_DIR": "/variable",
        "DRA_AGENT_CONFIG": str(file),
    }
    config = configure("--node-name", "of-flag", variables=variables)
    assert (config.node_name, config.state_dir, config.log_level) == ("of-flag", Path("/variable"), "debug")
    assert config.standalone
    assert not configure("--no-standalone", "--config", str(file)).standalone


def test_the_default_file_is_read_unless_another_is_named(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_module, "DEFAULT_FILE", file)
    assert configure().node_name == "", "the default file is optional"
    file.write_text("node-name = 'of-default-file'\nlog-level = 'debug'")
    assert configure().node_name == "of-default-file"
    assert configure("--node-name", "of-flag").log_level == "debug"
    assert configure(variables={"DRA_AGENT_NODE_NAME": "of-variable"}).node_name == "of-variable"
    other = tmp_path / "other.toml"
    other.write_text("log-level = 'error'")
    for config in (
        configure("--config", str(other)),
        configure(variables={"DRA_AGENT_CONFIG": str(other)}),
    ):
        assert (config.node_name, config.log_level) == ("", "error")
    assert configure(variables={"DRA_AGENT_CONFIG": ""}).node_name == "", "an empty variable means no file"
    file.write_text("node-nam = 'x'")
    with pytest.raises(UsageError, match=r"config\.toml:1: unknown key"):
        load(argparse.Namespace(), {}, needs_node=True)


def test_an_invalid_host_name_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "my_host")
    message = r"the host's name: 'my_host' is not .*; choose another with --node-name"
    config = configure()
    with pytest.raises(ConfigError, match=message):
        _ = config.node
    assert config.host_label == "my_host"
    with pytest.raises(ConfigError, match=message):
        load(argparse.Namespace(), {}, needs_node=True)
    assert configure("--node-name", "node-1").node == "node-1"


def test_paths_are_of_the_directory_in_which_they_were_given(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Commands in other directories compare them with their own, and records of the host name them.
    monkeypatch.chdir(tmp_path)
    file.write_text('kubeconfig = "./kubeconfig"\n[reclaim]\nfile = "notice"\n')
    config = configure(
        *("--config", "config.toml", "--state-dir", "./state", "--sysfs-root", "../dgx/sys", "--dev-root", "/dev"),
        variables={"DRA_AGENT_CDI_DIR": "cdi"},
    )
    assert (config.state_dir, config.cdi_dir, config.kubeconfig, config.reclaim.file, config.dev_root) == (
        *(tmp_path / name for name in ("state", "cdi", "kubeconfig", "notice")),
        Path("/dev"),
    )
    assert config.sysfs_root == tmp_path / "../dgx/sys"
    assert config.net_root is None
    assert configure("--state-dir", "state", "--simulate", "a30").cdi_dir == tmp_path / "state/cdi"
    assert configure(variables={"XDG_STATE_HOME": "data", "DRA_AGENT_SIMULATE": "a30"}).state_dir.is_absolute()


@pytest.mark.parametrize("name", sorted(HELP))
def test_every_flag_is_also_a_variable_and_a_key(name: str, file: Path) -> None:
    values = {
        "standalone": "true",
        "device_metadata": "true",
        "claim_status": "false",
        "second_manager": "publish",
        "node_labels": "nfd",
        "log_level": "error",
        "log_format": "json",
        "metrics_address": ":1",
        "nvidia_driver_root": "auto",
        "nvidia_driver_root_ctr_path": "/host",
        "health_address": ":1",
    }
    value = values.get(name, "x")
    pair = {"metrics_tls_cert": "metrics_tls_key", "metrics_tls_key": "metrics_tls_cert"}
    names = [name, *([pair[name]] if name in pair else [])]
    text = value if value in ("true", "false") else repr(value)
    file.write_text("".join(f"{one.replace('_', '-')} = {text}\n" for one in names))
    variables = {f"DRA_AGENT_{one.upper()}": value for one in names}
    assert configure("--config", str(file)) == configure(variables=variables)
    assert configure("--config", str(file)) != Config()


@pytest.mark.parametrize("setting", ["NoExecute", "NoSchedule", "tell", "none"])
def test_every_taint_setting_is_accepted_for_every_severity(file: Path, setting: str) -> None:
    file.write_text(f"[health]\nfatal = '{setting}'\ndegraded = '{setting}'\nunmonitored = '{setting}'\n")
    health = configure("--config", str(file)).health
    assert (health.fatal, health.degraded, health.unmonitored) == (setting, setting, setting)


def test_the_inventory_section_reaches_its_struct(file: Path) -> None:
    file.write_text(
        '[inventory]\nexclude = ["true"]\n[[inventory.attributes]]\nwhen = "true"\nset = { latency = "low" }\n'
    )
    inventory = configure("--config", str(file)).inventory
    assert inventory.exclude == ("true",)
    assert inventory.attributes[0].set == {"latency": "low"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node-nam = 'x'", r"config\.toml:1: unknown key 'node-nam'; did you mean node_name\?"),
        ("\n\nzzz = 1", r"config\.toml:3: unknown key 'zzz'; known keys: standalone, "),
        ("[inventory]\nexlude = []", r"config\.toml:2: unknown key 'exlude'; did you mean exclude\?"),
        (
            "log-level = 'loud'",
            r"config\.toml:1: log_level: Invalid enum value 'loud'; it must be one of debug, info,",
        ),
        (
            "[health]\nunmonitored = 'None'",
            r"health\.unmonitored: Invalid enum value 'None'; it must be one of NoExecute, NoSchedule, tell, none$",
        ),
        (
            "[[reclaim.node_taints]]\nkey = 'k'\nkind = 'x'",
            r"config\.toml:3: reclaim\.node_taints\[0\]\.kind: Invalid enum value 'x'",
        ),
        ("[reclaim.aws]\nrebalence = 'hint'", r"config\.toml:2: unknown key 'rebalence'; did you mean rebalance\?"),
        (
            "[reclaim.aws]\nrebalance = 'always'",
            r"toml:2: reclaim\.aws\.rebalance: Invalid enum value 'always'; it must be one of ignore, hint, notice$",
        ),
        ("standalone = 'yes'", r"config\.toml:1: standalone: Expected `bool`, got `str`"),
        ("[inventory]\ninclude = 'all'", r"config\.toml:2: inventory\.include: Expected `array`, got `str`"),
        ("node-name = ", r"config\.toml:1: not TOML: Invalid value$"),
        ("\nnode-name = " + "[" * 5000, r"config\.toml: not TOML that can be read: it is nested too deeply$"),
        ("node-name = " + "1" * 5000, r"config\.toml: not TOML that can be read: .*4300 digits"),
        ("standalone = true\n[inventory\n", r"config\.toml:2: not TOML: "),
        ("standalone = true\n\nnode-name = 'UP'", r"config\.toml:3: node_name: 'UP' is not a DNS subdomain"),
        ("\ndriver-name = 'a_b'", r"config\.toml:2: driver_name: 'a_b' is not a DNS subdomain"),
        ("\nmetrics-address = '9464'", r"config\.toml:2: metrics_address: '9464' is not HOST:PORT"),
        (
            "[inventory]\ninclude = ['true']\nexclude = [\n  'false',\n  'device.drivr == \"x\"',\n]",
            r"config\.toml:5: inventory\.exclude\[1\]: .*does not compile",
        ),
        (
            "[[inventory.share]]\nwhen = 'true'\nenforcement = 'none'\n\n"
            "[[inventory.share]]\nwhen = 'nope'\nenforcement = 'none'",
            r"config\.toml:6: inventory\.share\[1\]\.when: 'nope' does not compile",
        ),
        (
            "[[inventory.share]]\nwhen = 'true'\nenforcement = 'none'\nminimum = 'much'",
            r"config\.toml:4: inventory\.share\[0\]\.minimum: ",
        ),
        (
            "[[inventory.attributes]]\nwhen = 'true'\nset = { uuid = 'x' }",
            r"config\.toml:3: inventory\.attributes\[0\]\.set\.uuid: the agent sets the attribute 'uuid'",
        ),
        (
            "[[inventory.share]]\nwhen = 'true'\nenforcement = 'none'\n[[inventory.share]]\nwhen = 'true'",
            r"config\.toml:4: inventory\.share\[1\]: required key 'enforcement' is missing",
        ),
        ("[reclaim]\nendpoint = 'ftp://x'", r"config\.toml:2: reclaim\.endpoint: 'ftp://x' is not http://HOST"),
        ("pod-uid = '..'", r"config\.toml:1: pod_uid: '\.\.' cannot name an instance"),
        ("node-name = 'a'\nnode_name = 'b'", r"config\.toml:1: node_name: is set twice"),
        ("[health]\nrecovery_seconds = nan", r"config\.toml:2: health\.recovery_seconds: nan is not a number"),
        (
            "[[inventory.share]]\nwhen = 'true'\nenforcement = 'none'\nstpe = '1Gi'",
            r"config\.toml:4: unknown key 'stpe'; did you mean step",
        ),
    ],
)
def test_an_error_in_the_file_is_reported_with_its_line(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        configure("--config", str(file))
    assert caught.value.exit_code == 2


def test_an_unreadable_file_is_reported(file: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.toml: cannot be read: No such file"):
        configure("--config", str(file))
    file.write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"config\.toml: not UTF-8 text \(byte 0\)"):
        configure("--config", str(file))


def test_only_a_regular_file_of_bounded_size_is_read(file: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    file.write_text("# " + "x" * (1 << 20))
    for path, reason in (
        (tmp_path / "fifo", "Is a FIFO, not a regular file"),
        (Path("/dev/zero"), "Is a device, not a regular file"),
        (tmp_path, "Is a directory, not a regular file"),
        (file, "Larger than 1 MiB"),
    ):
        with pytest.raises(UsageError, match=f"{path}: cannot be read: {reason}"):
            load_config(argparse.Namespace(config=path), {})


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["--log-format", "xml"], {}, "--log-format: 'xml': .*one of 'text', 'json'"),
        ([], {"DRA_AGENT_STANDALONE": "maybe"}, "DRA_AGENT_STANDALONE: 'maybe': .*true or false"),
        (["--driver-name", "Not A Name"], {}, "--driver-name: 'Not A Name' is not a DNS subdomain"),
        (["--driver-name", "a" * 64], {}, "at most 63 characters"),
        (["--node-name", "UP"], {}, "--node-name: 'UP' is not a DNS subdomain"),
        ([], {"DRA_AGENT_NODE_NAME": "UP"}, "DRA_AGENT_NODE_NAME: 'UP' is not a DNS subdomain"),
        ([], {"DRA_AGENT_DRIVER_NAME": "a_b"}, "DRA_AGENT_DRIVER_NAME: 'a_b' is not a DNS subdomain"),
        ([], {"DRA_AGENT_METRICS_ADDRESS": "9464"}, "DRA_AGENT_METRICS_ADDRESS: '9464' is not HOST:PORT"),
        (["--metrics-address", "9464"], {}, "--metrics-address: '9464' is not HOST:PORT"),
        (["--metrics-address", "host:99999"], {}, "is not HOST:PORT"),
    ],
)
def test_an_invalid_flag_or_variable_is_reported(arguments: list[str], variables: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        configure(*arguments, variables=variables)


def test_addresses_of_every_form() -> None:
    assert listen_address("127.0.0.1:9464") == ("127.0.0.1", 9464)
    assert listen_address("[::1]:80") == ("::1", 80)
    assert listen_address(":0") == ("", 0)


@pytest.mark.parametrize(
    ("setting", "families"),
    [
        ('"off"', frozenset()),
        ("false", frozenset()),
        ('"nics"', frozenset({"nic"})),
        ('"all"', None),
        ("true", None),
    ],
)
def test_claim_status_accepts_families_and_the_earlier_switch(
    file: Path, setting: str, families: frozenset[str] | None
) -> None:
    file.write_text(f"claim_status = {setting}\n")
    assert configure("--config", str(file)).claim_status_families == families
    variables = {"DRA_AGENT_CLAIM_STATUS": setting.strip('"')}
    assert configure(variables=variables).claim_status_families == families
    assert configure("--claim-status", setting.strip('"')).claim_status_families == families
    assert configure().claim_status_families == frozenset({"nic"})
    assert configure("--no-claim-status").claim_status_families == frozenset()
    assert configure("--claim-status").claim_status_families is None


def test_a_simulated_agent_without_root_uses_the_users_state_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    variables = {"XDG_STATE_HOME": str(tmp_path)}
    user_dir = tmp_path / "dra-agent"
    assert configure("--simulate", "vm-1gpu", variables=variables).state_dir == user_dir
    home = {"HOME": str(tmp_path)}
    assert configure("--simulate", "x", variables=home).state_dir == tmp_path / ".local/state/dra-agent"
    assert configure("--simulate", "x", "--state-dir", "/given", variables=variables).state_dir == Path("/given")
    user_dir.mkdir()
    (user_dir / "agent.sock").touch()
    assert configure(variables=variables).state_dir == user_dir, "commands find the agent that runs there"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert configure("--simulate", "x", variables=variables).state_dir == Path("/var/lib/dra-agent")


def test_a_file_can_set_directories_to_their_defaults(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    file.write_text('simulate = "vm-1gpu"\ncdi_dir = "/var/run/cdi"\nstate_dir = "/var/lib/dra-agent"\n')
    config = configure("--config", str(file), variables={"HOME": str(tmp_path)})
    assert (config.cdi_dir, config.state_dir) == (Path("/var/run/cdi"), Path("/var/lib/dra-agent"))


@pytest.mark.parametrize("content", ["agent.sock", "ledger"])
def test_commands_without_root_use_the_hosts_state_dir_only_if_it_has_an_agent_or_claims(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    host_dir, variables = tmp_path / "host", {"HOME": str(tmp_path)}
    user_dir = tmp_path / ".local/state/dra-agent"

    def chosen() -> Path | None:
        return user_state_dir(variables, host_dir, is_simulated=False)

    assert chosen() == user_dir, "the user's agent may be starting"
    host_dir.mkdir()
    assert chosen() == user_dir
    (host_dir / content).touch()
    assert chosen() is None
    user_dir.mkdir(parents=True)
    (user_dir / "agent.sock").touch()
    assert chosen() == user_dir
    assert user_state_dir({}, host_dir, is_simulated=True) is None, "without a home directory"


WRONG = """\
# node-nam = "in a comment"
node-nam = 'x'
standalone = 'yes'
metrics-address = '9464'
[inventory]
include = [
  "tr ue",  # no expression
  3,
  "true",
  \'nope == "]"\',
]
attributes = [{ when = "true", set = { "example.com/rack" = 1.5, uuid = "x" } }]
[[inventory.share]]
when = \'\'\'nope
\'\'\'
enforcement = "none"
[[inventory.share]]
when = "true"
"""


REMOVED = "otlp: no longer used: the agent exports nothing; let the collector scrape /metrics, and remove the section"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[otlp]\nendpoint = "http://127.0.0.1:4318"\nattributes = { "k8s.cluster.name" = "c" }\n', 1),
        ("standalone = true\n\n[otlp]\nmetrics = 3\n[health]\nfatal = 'none'\n", 3),
        ("otlp.interval = 5\n", 1),
        ("node_name = 'n'\notlp = 'off'\n", 2),
    ],
)
def test_a_section_of_an_earlier_version_is_ignored_with_its_line(file: Path, text: str, line: int) -> None:
    file.write_text(text)
    parser = argparse.ArgumentParser()
    add_flags(parser)
    loaded = load(parser.parse_args(["--config", str(file)]), {})
    assert [str(one) for one in loaded.ignored] == [f"{file}:{line}: {REMOVED}"]
    assert not [key for key in loaded.file_lines if key.startswith("otlp")]
    assert loaded.config.health.fatal == ("none" if "fatal" in text else Config().health.fatal), "the rest applies"


def test_a_removed_name_is_ignored_at_its_own_place_only(file: Path) -> None:
    file.write_text("[health]\notlp = true\n")
    with pytest.raises(ConfigError, match=r"config\.toml:2: unknown key 'otlp'"):
        configure("--config", str(file))


def test_all_problems_are_reported_at_once_each_with_its_line(file: Path) -> None:
    file.write_text(WRONG)
    with pytest.raises(ConfigError) as caught:
        configure("--config", str(file), "--log-level", "loud", variables={"DRA_AGENT_NODE_NAME": "UP"})
    found = [(one.line, one.key, one.message.partition(":")[0]) for one in caught.value.problems]
    assert found == [
        (2, "node-nam", "unknown key 'node-nam'"),
        (3, "standalone", "Expected `bool`, got `str`"),
        (4, "metrics_address", "'9464' is not HOST"),
        (7, "inventory.include[0]", "'tr ue' does not compile"),
        (8, "inventory.include[1]", "Expected `str`, got `int`"),
        (10, "inventory.include[3]", "'nope == \"]\"' does not compile"),
        (
            12,
            "inventory.attributes[0].set.example.com/rack",
            "Expected `bool | int | str | object | array`, got `float`",
        ),
        (14, "inventory.share[0].when", "'nope\\n' does not compile"),
        (17, "inventory.share[1]", "required key 'enforcement' is missing"),
        (None, "", "'loud'"),
        (None, "", "'UP' is not a DNS subdomain of at most 253 characters"),
    ], caught.value
    assert len(str(caught.value).splitlines()) == len(found)


def test_origins_are_those_of_the_values(file: Path) -> None:
    file.write_text(
        "log-level = 'debug'\n[health]\nfatal = 'none'\n[[inventory.share]]\nwhen = 'true'\nenforcement='none'"
    )
    parser = argparse.ArgumentParser()
    add_flags(parser)
    loaded = load(parser.parse_args(["--config", str(file), "--simulate", "vm-1gpu"]), {"DRA_AGENT_POD_UID": "u"})
    origins = {key.name: loaded.origin(key.name) for key in config_keys()}
    assert {key: origin for key, origin in origins.items() if origin != "default"} == {
        "log_level": f"{file}:1",
        "health.fatal": f"{file}:3",
        "inventory.share": f"{file}:4",
        "simulate": "--simulate",
        "pod_uid": "DRA_AGENT_POD_UID",
        "cdi_dir": "default with --simulate",
    }


@pytest.mark.parametrize("name", ["nvidia_driver_root", "nvidia_driver_root_ctr_path"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("run/nvidia/driver", "is not an absolute path"),
        ("/run/../driver", r"contains '\.\.'"),
        ("/etc/hostname", "is a file, not a directory"),
    ],
)
def test_a_driver_root_that_can_never_be_one(tmp_path: Path, name: str, value: str, reason: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'standalone = true\n{name} = "{value}"\n')
    with pytest.raises(UsageError, match=rf"config\.toml:2: .*{value}' {reason}; write "):
        configure("--config", str(file))
    flag = "--" + name.replace("_", "-")
    with pytest.raises(UsageError, match=f"{flag}: .*{reason}"):
        configure(flag, value)
    assert configure("--nvidia-driver-root", "/run/nvidia/driver").nvidia_driver_root == "/run/nvidia/driver"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:9464", True),
        ("127.5.0.1:1", True),
        ("[::1]:9464", True),
        ("localhost:9464", True),
        (":9464", False),
        ("0.0.0.0:9464", False),
        ("[::]:9464", False),
        ("10.0.0.1:9464", False),
        ("localhost.example.com:9464", False),
    ],
)
def test_only_loopback_addresses_are_closed(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
