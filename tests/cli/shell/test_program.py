"""The program as a whole: how it finds the cluster, its exit codes, what it loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from cli.exits import CliError
from cli.kubeconfig import Connection, load_access
from cli.program import main
from dra.common.resources import NODES
from dra.kube.client import KubeApi
from dra.kube.errors import UnavailableError
from dra.kube.http import HttpClient
from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.dra.kube.connect.certificates import Certificates
from tests.dra.kube.stub import Stub, reply, thing
from tests.helpers.waiting import PATIENCE


def config(path: Path, *, server: str = "http://127.0.0.1:1", **parts: Any) -> Path:
    """A kubeconfig with one context ``c``."""
    body = {
        "current-context": "c",
        "contexts": [
            {"name": "c", "context": {"cluster": "k", "user": "u", **parts.pop("context", {})}}
        ],
        "clusters": [{"name": "k", "cluster": {"server": server, **parts.pop("cluster", {})}}],
        "users": [{"name": "u", "user": parts.pop("user", {})}],
        **parts,
    }
    path.write_text(yaml.safe_dump(body))
    return path


def read(path: Path, context: str | None = None, **environ: str) -> Any:
    return load_access(str(path), context=context, environ=environ)


# -- exit codes


@pytest.mark.parametrize("line", [[], ["paint"], ["map", "-o", "xml"], ["explain"], ["lint"]])
def test_a_wrong_command_line_is_2(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 2
    assert "Usage: kubectl mig" in capsys.readouterr().err


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert f'version = "{capsys.readouterr().out.split()[1]}"' in text


@pytest.mark.parametrize("line", [["--help"], ["map", "--help"], ["drain", "--help"]])
def test_help_is_0_and_names_the_exit_codes(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line) == 0
    assert "the cluster cannot be reached" in capsys.readouterr().out


def test_a_cluster_that_does_not_answer_is_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(config(tmp_path / "k"))
    assert main(["map", "--kubeconfig", path]) == 3
    assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err
    assert main(["map", "--kubeconfig", path, "-o", "json"]) == 3
    shown = json.loads(capsys.readouterr().out)
    assert (shown["kind"], shown["code"], shown["reason"]) == ("Error", 3, "UNREACHABLE")


def test_what_is_not_allowed_is_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Stub()
    status = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no list for you"}
    server.calls.append(reply(status, status=403))
    try:
        assert main(["map", "--kubeconfig", str(config(tmp_path / "k", server=server.url))]) == 5
    finally:
        server.close()
    assert "no list for you" in capsys.readouterr().err


# -- kubeconfigs


def test_the_namespace_is_that_of_the_context_or_of_n(world: World, mig: Mig) -> None:
    for arguments, namespace in (((), "default"), (("-n", "team"), "team")):
        assert f"pod or ResourceClaim {namespace}/x" in mig("explain", "x", *arguments).err


def test_several_kubeconfigs_are_merged_and_the_first_mention_wins(tmp_path: Path) -> None:
    first = config(tmp_path / "a", server="https://first", context={"namespace": "one"})
    second = config(tmp_path / "b", server="https://second", context={"namespace": "two"})
    second.write_text(second.read_text().replace("name: k", "name: k2"))
    both = f"{first}{os.pathsep}{second}{os.pathsep}{tmp_path / 'absent'}"
    access = load_access(None, context=None, environ={"KUBECONFIG": both})
    assert (access.server, access.namespace) == ("https://first", "one")


def test_files_are_looked_for_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("CA")
    (tmp_path / "token").write_text("secret\n")
    access = read(
        config(
            tmp_path / "k",
            cluster={"certificate-authority": "ca.crt"},
            user={"tokenFile": "token", "token": "old"},
        )
    )
    assert (access.ca, access.token) == ("CA", "secret")


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"context": {"cluster": "other"}}, "names no cluster"),
        ({"context": {"user": "other"}}, "unknown user 'other'"),
        ({"current-context": "d"}, "no context 'd'; there are: c"),
        ({"current-context": ""}, "no current-context"),
        ({"clusters": 3}, "clusters is no list"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, "not supported"),
        ({"cluster": {"certificate-authority-data": "%"}}, "cannot be read"),
        ({"user": {"client-key": "absent"}}, "client-key cannot be read"),
    ],
)
def test_what_is_wrong_with_a_kubeconfig_is_named(
    tmp_path: Path, parts: dict[str, Any], says: str
) -> None:
    with pytest.raises(CliError, match="k") as error:
        read(config(tmp_path / "k", **parts))
    assert says in str(error.value)
    assert error.value.code == 3


def test_no_kubeconfig_at_all_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="absent"):
        load_access(None, context=None, environ={"KUBECONFIG": str(tmp_path / "absent")})


# -- connections


def api(path: Path) -> KubeApi:
    connection = Connection(read(path))
    return KubeApi(HttpClient(connection, user_agent="test", timeout_seconds=PATIENCE))


def test_client_certificates_are_shown_and_the_server_is_verified(
    tls_stub: Stub, certificates: Certificates, tmp_path: Path
) -> None:
    tls_stub.calls.append(reply(thing("n")))
    authority, user = certificates.cluster(), certificates.user()
    path = config(tmp_path / "k", server=tls_stub.url, cluster=authority, user=user)
    assert api(path).get(NODES, "n") == thing("n")
    stranger = config(tmp_path / "s", server=tls_stub.url, user=user)
    with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        api(stranger).get(NODES, "n")


def test_verification_can_be_turned_off(
    tls_stub: Stub, certificates: Certificates, tmp_path: Path
) -> None:
    tls_stub.calls.append(reply(thing("n")))
    path = config(
        tmp_path / "k",
        server=tls_stub.url,
        cluster={"insecure-skip-tls-verify": True},
        user=certificates.user(),
    )
    assert api(path).get(NODES, "n") == thing("n")


def test_a_credential_plugin_gives_the_token(tmp_path: Path) -> None:
    server = Stub()
    server.calls.append(reply(thing("n")))
    script = tmp_path / "give"
    script.write_text('#!/bin/sh\necho "{\\"status\\": {\\"token\\": \\"$WHO-$1\\"}}"\n')
    script.chmod(0o755)
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./give",
        "args": ["x"],
        "env": [{"name": "WHO", "value": "me"}],
    }
    try:
        api(config(tmp_path / "k", server=server.url, user={"exec": plugin})).get(NODES, "n")
    finally:
        server.close()
    assert server.requests[0].headers["authorization"] == "Bearer me-x"


@pytest.mark.parametrize(
    ("command", "says"), [("absent-plugin", "run brew"), ("false", "failed"), ("true", "gave no")]
)
def test_a_credential_plugin_that_does_not_work_is_named(
    tmp_path: Path, command: str, says: str
) -> None:
    plugin = {"command": command, "installHint": "run brew install it"}
    with pytest.raises(CliError, match=command) as error:
        api(config(tmp_path / "k", user={"exec": plugin}))
    assert says in str(error.value)


@pytest.mark.parametrize("given", [None, 3.0])
def test_a_login_takes_as_long_as_it_does_but_for_completion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: float | None
) -> None:
    """kubectl has no limit either (client-go, plugin/pkg/client/auth/exec/exec.go: cmd.Run)."""
    allowed: list[float | None] = []

    def run(*_: object, timeout: float | None = None, **__: object) -> SimpleNamespace:
        allowed.append(timeout)
        return SimpleNamespace(stdout='{"status": {"token": "t"}}')

    monkeypatch.setattr(subprocess, "run", run)
    access = read(config(tmp_path / "k", user={"exec": {"command": "x"}}))
    Connection(access, login_seconds=given)
    assert allowed == [given]


# -- what is loaded


def test_the_heavy_client_library_is_not_loaded(world: World) -> None:
    code = (
        "import sys; from cli.program import main; code = main(['map']); "
        "assert not {'kubernetes', 'grpc', 'cel_expr_python'} & set(sys.modules); "
        "sys.exit(code)"
    )
    env = {**os.environ, "KUBECONFIG": str(world.kubeconfig)}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 0


def test_help_loads_neither_network_nor_model() -> None:
    code = (
        "import sys; from cli.program import main; main(['map', '--help']); "
        "assert not {'urllib3', 'yaml', 'msgspec', 'dra.gpu.geometry'} & set(sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False)
    assert ended.returncode == 0
