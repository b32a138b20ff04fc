"""Where the server's address and the credentials come from, and what that costs in memory."""

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import NODES, Obj
from dra.kube.client import KubeApi
from dra.kube.connection import Connection
from dra.kube.errors import KubeConfigError, UnavailableError
from dra.kube.kubeconfig import load_access
from tests.dra.kube.connect.certificates import Certificates, make_certificates
from tests.dra.kube.connect.tlsrelay import copy
from tests.dra.kube.stub import Stub, reply, thing


def tls_kubeconfig(stub: Stub, certificates: Certificates, path: Path, *, user: Obj) -> str:
    return stub.kubeconfig(path, user=user, cluster=certificates.cluster())


def test_client_certificates_of_a_kubeconfig_are_shown_and_the_server_is_verified(
    tls_stub: Stub, certificates: Certificates, tmp_path: Path
) -> None:
    tls_stub.calls.append(reply(thing("n")))
    user = certificates.user()
    config = tls_kubeconfig(tls_stub, certificates, tmp_path / "k", user=user)
    api = KubeApi.connect(config, user_agent="t")
    assert api.get(NODES, "n") == thing("n")
    assert "authorization" not in tls_stub.requests[0].headers


def test_a_server_with_an_unknown_certificate_is_refused(
    tls_stub: Stub, certificates: Certificates, tmp_path: Path
) -> None:
    config = tls_stub.kubeconfig(tmp_path / "k", user=certificates.user())
    with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        KubeApi.connect(config, user_agent="t").get(NODES, "n")
    assert not tls_stub.requests


_UNVERIFIED = """
import sys
from dra.common.resources import NODES
from dra.kube.client import KubeApi
from dra.common.program import configure
configure("info", "text")
api = KubeApi.connect(sys.argv[1], user_agent="t")
print(*(api.get(NODES, "n")["metadata"]["name"] for _ in range(5)))
"""


@pytest.mark.parametrize("insecure", [True, False])
def test_an_unverified_server_is_said_once_and_not_at_each_request(
    tls_stub: Stub, certificates: Certificates, tmp_path: Path, *, insecure: bool
) -> None:
    tls_stub.calls += [reply(thing("n"))] * 5
    cluster = {"insecure-skip-tls-verify": True} if insecure else certificates.cluster()
    config = tls_stub.kubeconfig(tmp_path / "k", user=certificates.user(), cluster=cluster)
    done = subprocess.run(
        [sys.executable, "-c", _UNVERIFIED, config], capture_output=True, text=True, check=True
    )
    assert done.stdout == "n n n n n\n"
    lines = [each for each in done.stderr.splitlines() if "erif" in each or "Insecure" in each]
    assert len(lines) == insecure, done.stderr
    assert all(f"server={tls_stub.url}" in each and "WARNING" in each for each in lines)
    assert all("certificate-authority" in each for each in lines)


@pytest.fixture
def pod(
    tls_stub: Stub, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The directory of a service account, in a pod of the stub's cluster."""
    # The stub wants client certificates; a service account has none.
    assert tls_stub.context is not None
    tls_stub.context.verify_mode = ssl.CERT_NONE
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(tls_stub.port))
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_bytes(certificates.path("ca.crt").read_bytes())
    return tmp_path


def test_without_kubeconfig_a_pod_uses_its_service_account_and_the_token_of_the_moment(
    tls_stub: Stub, pod: Path
) -> None:
    tls_stub.calls += [reply(thing("n")), reply(thing("n"))]
    api = KubeApi.connect(user_agent="t", service_account=pod)
    api.get(NODES, "n")
    (pod / "token").write_text("second\n")
    api.get(NODES, "n")
    assert [r.headers["authorization"] for r in tls_stub.requests] == [
        "Bearer first",
        "Bearer second",
    ]


def test_certificates_may_stand_in_files_beside_the_kubeconfig(
    tls_stub: Stub, certificates: Certificates, tmp_path: Path
) -> None:
    tls_stub.calls.append(reply(thing("n")))
    for name in ("ca.crt", "client.crt", "client.key"):
        (tmp_path / name).write_bytes(certificates.path(name).read_bytes())
    user = {
        "client-certificate": "client.crt",
        "client-key": str(tmp_path / "client.key"),
        "token": "t",
    }
    cluster = {"certificate-authority": "ca.crt"}
    config = tls_stub.kubeconfig(tmp_path / "k", user=user, cluster=cluster)
    KubeApi.connect(config, user_agent="t").get(NODES, "n")
    assert tls_stub.requests[0].headers["authorization"] == "Bearer t"


@pytest.mark.parametrize(("name", "scheme"), [("HTTP_PROXY", "http://"), ("http_proxy", "")])
def test_a_kubeconfigs_server_is_reached_by_the_proxy_of_the_environment(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, scheme: str
) -> None:
    stub.calls.append(reply(thing("n")))
    monkeypatch.setenv(name, f"{scheme}{stub.url.removeprefix('http://')}")
    config = stub.kubeconfig(tmp_path / "k", cluster={"server": "http://kubernetes.invalid/below"})
    KubeApi.connect(config, user_agent="t").get(NODES, "n")
    assert stub.requests[0].headers["host"] == "kubernetes.invalid"
    assert stub.requests[0].path == "/below/api/v1/nodes/n"
    monkeypatch.setenv("no_proxy", "kubernetes.invalid")
    with pytest.raises(UnavailableError, match=r"kubernetes\.invalid"):
        KubeApi.connect(config, user_agent="t").get(NODES, "n")


def test_a_server_with_tls_is_reached_through_the_tunnel_of_a_proxy(
    tls_stub: Stub, certificates: Certificates, tmp_path: Path
) -> None:
    def tunnel(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client:
            if not client.recv(65536).startswith(b"CONNECT kubernetes.invalid:6443 HTTP/1."):
                return
            with socket.create_connection(("127.0.0.1", tls_stub.port)) as server:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                threading.Thread(target=copy, args=(server, client), daemon=True).start()
                copy(client, server)

    tls_stub.calls.append(reply(thing("n")))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=tunnel, args=(listener,), daemon=True).start()
        cluster = certificates.cluster() | {
            "server": "https://kubernetes.invalid:6443",
            "tls-server-name": "127.0.0.1",
            "proxy-url": f"http://127.0.0.1:{listener.getsockname()[1]}",
        }
        config = tls_stub.kubeconfig(tmp_path / "k", user=certificates.user(), cluster=cluster)
        assert KubeApi.connect(config, user_agent="t").get(NODES, "n") == thing("n")


@pytest.mark.parametrize("proxy", ["https://proxy:1", "socks5://proxy:1", "proxy:1"])
def test_a_proxy_of_another_kind_is_an_error_of_the_kubeconfig(
    stub: Stub, tmp_path: Path, proxy: str
) -> None:
    config = stub.kubeconfig(tmp_path / "k", cluster={"proxy-url": proxy})
    with pytest.raises(KubeConfigError, match=rf"{proxy}.*http://"):
        KubeApi.connect(config, user_agent="t")


def test_a_pod_verifies_the_server(
    tls_stub: Stub, pod: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = make_certificates(tmp_path_factory.mktemp("other"))
    (pod / "ca.crt").write_bytes(other.path("ca.crt").read_bytes())
    api = KubeApi.connect(user_agent="t", service_account=pod)
    with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        api.get(NODES, "n")
    assert not tls_stub.requests


@pytest.mark.parametrize(
    ("name", "text"), [("token", None), ("token", "\n"), ("ca.crt", None), ("ca.crt", "no PEM")]
)
def test_a_service_account_that_cannot_be_used_names_its_file_and_the_remedy(
    pod: Path, name: str, text: str | None
) -> None:
    (pod / name).unlink()
    if text is not None:
        (pod / name).write_text(text)
    with pytest.raises(KubeConfigError, match=rf"{name}.*automountServiceAccountToken"):
        KubeApi.connect(user_agent="t", service_account=pod)


def test_without_a_pod_the_environment_names_the_kubeconfig(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", stub.kubeconfig(tmp_path / "k"))
    stub.calls.append(reply(thing("n")))
    assert KubeApi.connect(user_agent="t").get(NODES, "n") == thing("n")


@pytest.mark.parametrize(
    ("expires", "given"),
    [
        ("2020-01-01T00:00:00Z", ["token-1", "token-1", "token-2"]),
        ("2099-01-01T00:00:00Z", ["token-1"] * 3),
        ("", ["token-1"] * 3),
    ],
)
def test_an_expired_exec_credential_is_fetched_again(
    stub: Stub, tmp_path: Path, expires: str, given: list[str]
) -> None:
    count = tmp_path / "count"
    count.write_text("")
    status = {"token": "TOKEN"} | ({"expirationTimestamp": expires} if expires else {})
    program = (
        f"open({str(count)!r}, 'a').write('x'); n = len(open({str(count)!r}).read()); "
        f"print({json.dumps({'status': status})!r}.replace('TOKEN', f'token-{{n}}'))"
    )
    user = {"exec": {"command": sys.executable, "args": ["-c", program]}}
    clock = iter([0.0, 0.0, 0.5, 1.5, 1.5])
    access = load_access(stub.kubeconfig(tmp_path / "k", user=user))
    connection = Connection(access, now=lambda: next(clock))
    found = [connection.credentials()["authorization"] for _ in range(3)]
    assert found == [f"Bearer {token}" for token in given]


def test_a_credential_plugin_is_told_its_arguments_and_environment(
    stub: Stub, tmp_path: Path
) -> None:
    stub.calls.append(reply(thing("n")))
    script = tmp_path / "give"
    script.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "server = json.loads(os.environ['KUBERNETES_EXEC_INFO'])['spec']['cluster']['server']\n"
        "token = f\"{os.environ['WHO']}-{sys.argv[1]}-{server}\"\n"
        "print(json.dumps({'status': {'token': token}}))\n"
    )
    script.chmod(0o755)
    plugin = {
        "command": "./give",
        "args": ["x"],
        "env": [{"name": "WHO", "value": "me"}],
        "provideClusterInfo": True,
    }
    config = stub.kubeconfig(tmp_path / "k", user={"exec": plugin})
    KubeApi.connect(config, user_agent="t").get(NODES, "n")
    assert stub.requests[0].headers["authorization"] == f"Bearer me-x-{stub.url}"


@pytest.mark.parametrize(
    ("command", "says"), [("absent-plugin", "run brew"), ("false", "failed"), ("true", "gave no")]
)
def test_a_credential_plugin_that_does_not_work_is_named(
    stub: Stub, tmp_path: Path, command: str, says: str
) -> None:
    plugin = {"command": command, "installHint": "run brew install it"}
    with pytest.raises(KubeConfigError, match=f"{command}.*{says}"):
        KubeApi.connect(stub.kubeconfig(tmp_path / "k", user={"exec": plugin}), user_agent="t")


def test_several_kubeconfigs_are_merged_and_the_first_mention_wins(tmp_path: Path) -> None:
    first = config(tmp_path / "a", server="https://first", context={"namespace": "one"})
    second = config(tmp_path / "b", server="https://second", context={"namespace": "two"})
    second.write_text(second.read_text().replace('"name": "k"', '"name": "k2"'))
    both = f"{first}{os.pathsep}{second}{os.pathsep}{tmp_path / 'absent'}"
    for access in (load_access(None, environ={"KUBECONFIG": both}), load_access(both)):
        assert (access.server, access.namespace) == ("https://first", "one")


def config(path: Path, *, server: str = "http://127.0.0.1:1", **parts: Any) -> Path:
    """A kubeconfig with one context ``c``."""
    context = {"cluster": "k", "user": "u", **parts.pop("context", {})}
    body = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": context}],
        "clusters": [{"name": "k", "cluster": {"server": server, **parts.pop("cluster", {})}}],
        "users": [{"name": "u", "user": parts.pop("user", {})}],
        **parts,
    }
    path.write_text(json.dumps(body))
    return path


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"context": {"cluster": "other"}}, "names no cluster"),
        ({"context": {"user": "other"}}, "unknown user 'other'"),
        ({"current-context": "d"}, "no context 'd'; there are: c"),
        ({"current-context": ""}, "no current-context"),
        ({"clusters": 3}, "clusters is no list"),
        ({"clusters": [{}]}, "has no name"),
        ({"clusters": [{"name": "k", "cluster": 3}]}, "is no mapping"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, "not supported"),
        ({"cluster": {"certificate-authority-data": "%"}}, "cannot be read"),
        ({"user": {"client-key": "absent"}}, "client-key cannot be read"),
    ],
)
def test_what_is_wrong_with_a_kubeconfig_is_named(
    tmp_path: Path, parts: dict[str, Any], says: str
) -> None:
    with pytest.raises(KubeConfigError) as error:
        load_access(str(config(tmp_path / "my-kubeconfig", **parts)))
    assert says in str(error.value)
    assert "my-kubeconfig" in str(error.value)


@pytest.mark.parametrize("content", [None, "", "{", "clusters: 5\n", "- 1\n", "\0"])
def test_an_unusable_kubeconfig_is_named_with_the_remedy(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "my-kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(KubeConfigError, match=r"(?s)my-kubeconfig.*--kubeconfig or KUBECONFIG"):
        KubeApi.connect(str(path), user_agent="t")


@pytest.mark.parametrize("data", ["bm8gUEVN", "LS0tLS1CRUdJTg=="])
def test_a_certificate_that_is_none_is_an_error_of_the_kubeconfig(
    tls_stub: Stub, tmp_path: Path, data: str
) -> None:
    for user, cluster in (
        ({"client-certificate-data": data, "client-key-data": data}, {}),
        ({}, {"certificate-authority-data": data}),
    ):
        path = tls_stub.kubeconfig(tmp_path / "k", user=user or None, cluster=cluster)
        with pytest.raises(KubeConfigError, match=r"a certificate .* cannot be used"):
            KubeApi.connect(path, user_agent="t")
