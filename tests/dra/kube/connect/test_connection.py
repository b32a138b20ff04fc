"""Where the server's address and the credentials come from, and what that costs in memory."""

import json
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dra.common.resources import NODES, PODS, Obj
from dra.kube.client import KubeApi
from dra.kube.configured import open_connection
from dra.kube.connection import open_plain
from dra.kube.errors import KubeConfigError, UnavailableError
from tests.dra.kube.connect.certificates import Certificates, make_certificates
from tests.dra.kube.stub import Stub, events, eventually, reply, thing
from tests.helpers.waiting import PATIENCE


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
from dra.common.logs import configure
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
        [sys.executable, "-c", _UNVERIFIED, config],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "n n n n n\n"
    lines = [each for each in done.stderr.splitlines() if "erif" in each or "Insecure" in each]
    assert len(lines) == insecure, done.stderr
    assert all(f"server={tls_stub.url}" in each and "WARNING" in each for each in lines)
    assert all("certificate-authority" in each for each in lines)


def test_closing_a_watch_over_tls_wakes_its_reader(
    tls_stub: Stub, certificates: Certificates, tmp_path: Path
) -> None:
    tls_stub.watches.append(events(("ADDED", thing("a")), then="hang"))
    user = certificates.user()
    config = tls_kubeconfig(tls_stub, certificates, tmp_path / "k", user=user)
    api = KubeApi.connect(config, user_agent="t")
    stream = api.watch(PODS, resource_version="1", timeout_seconds=300)
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.extend(event.type for event in stream))
    reader.start()
    eventually(lambda: seen == ["ADDED"])
    stream.close()
    reader.join(PATIENCE)
    assert not reader.is_alive()


@pytest.fixture
def pod(
    tls_stub: Stub,
    certificates: Certificates,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
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


def test_a_pod_reaches_its_server_without_a_proxy(
    tls_stub: Stub, pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    tls_stub.calls.append(reply(thing("n")))
    assert KubeApi.connect(user_agent="t", service_account=pod).get(NODES, "n") == thing("n")


def test_a_pod_does_not_pay_for_the_kubernetes_package(tls_stub: Stub, pod: Path) -> None:
    tls_stub.calls.append(reply(thing("n")))
    program = (
        "import sys; from pathlib import Path; from dra.common.resources import NODES; "
        "from dra.kube.client import KubeApi; "
        "api = KubeApi.connect(user_agent='t', service_account=Path(sys.argv[1])); "
        "print(api.get(NODES, 'n')['metadata']['name'], 'kubernetes' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(pod)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "n False\n", done.stderr


_PLAIN = """
import sys
from dra.common.resources import NODES
from dra.kube.client import KubeApi
api = KubeApi.connect(sys.argv[1], user_agent="t")
print(api.get(NODES, "n")["metadata"]["name"], "kubernetes" in sys.modules)
"""


@pytest.mark.parametrize("inline", [True, False])
def test_a_plain_kubeconfig_does_not_cost_the_kubernetes_package(
    tls_stub: Stub, certificates: Certificates, tmp_path: Path, *, inline: bool
) -> None:
    tls_stub.calls.append(reply(thing("n")))
    user, cluster = certificates.user(), certificates.cluster()
    if not inline:
        for name in ("ca.crt", "client.crt", "client.key"):
            (tmp_path / name).write_bytes(certificates.path(name).read_bytes())
        cluster = {"certificate-authority": "ca.crt"}
        user = {
            "client-certificate": str(tmp_path / "client.crt"),
            "client-key": str(tmp_path / "client.key"),
        }
    config = tls_stub.kubeconfig(tmp_path / "k", user={**user, "token": "t"}, cluster=cluster)
    done = subprocess.run(
        [sys.executable, "-c", _PLAIN, config], capture_output=True, text=True, check=False
    )
    assert done.stdout == "n False\n", done.stderr
    assert tls_stub.requests[0].headers["authorization"] == "Bearer t"


@pytest.mark.parametrize(
    ("cluster", "user", "environ"),
    [
        ({"proxy-url": "http://proxy"}, {}, {}),
        ({"tls-server-name": "other"}, {}, {}),
        ({"insecure-skip-tls-verify": True}, {}, {}),
        ({}, {"tokenFile": "/token"}, {}),
        ({}, {"exec": {"command": "login"}}, {}),
        ({}, {"client-certificate": "/nowhere"}, {}),
        ({}, {"client-certificate-data": "bm8gUEVN"}, {}),
        ({}, {}, {"HTTPS_PROXY": "http://proxy"}),
        ({}, {}, {"https_proxy": "http://proxy"}),
    ],
)
def test_a_kubeconfig_that_is_not_plain_is_left_to_the_kubernetes_package(
    tls_stub: Stub, tmp_path: Path, cluster: Obj, user: Obj, environ: dict[str, str]
) -> None:
    plain = tls_stub.kubeconfig(tmp_path / "plain")
    assert open_plain(plain, {}, pool_size=1) is not None
    config = tls_stub.kubeconfig(tmp_path / "k", user=user or None, cluster=cluster)
    assert open_plain(config, environ, pool_size=1) is None


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


def test_an_expired_exec_credential_is_fetched_again(stub: Stub, tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("")
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "TOKEN", "expirationTimestamp": "2020-01-01T00:00:00Z"},
    }
    program = (
        f"open({str(count)!r}, 'a').write('x'); n = len(open({str(count)!r}).read()); "
        f"print({json.dumps(credential)!r}.replace('TOKEN', f'token-{{n}}'))"
    )
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": ["-c", program],
            "interactiveMode": "Never",
        }
    }
    path = stub.kubeconfig(tmp_path / "k", user=user)
    clock = iter([0.0, 0.0, 0.5, 1.5, 1.5])
    connection = open_connection(path, pool_size=1, now=lambda: next(clock))
    given = [connection.credentials()["authorization"] for _ in range(3)]
    assert given == ["Bearer token-2", "Bearer token-2", "Bearer token-3"]


@pytest.mark.parametrize(
    "content", [None, "", "{", "clusters: 5\n", "current-context: x\ncontexts: []\nclusters: []\n"]
)
def test_an_unusable_kubeconfig_is_named_with_the_remedy(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "my-kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(KubeConfigError, match=r"my-kubeconfig.*--kubeconfig or KUBECONFIG"):
        KubeApi.connect(str(path), user_agent="t")


def test_without_the_kubernetes_package_what_is_not_plain_names_it(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the images, which run in pods."""
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)
    monkeypatch.delitem(sys.modules, "dra.kube.configured")
    path = stub.kubeconfig(tmp_path / "k", user={"exec": {"command": "login"}})
    with pytest.raises(KubeConfigError, match=r"/k .*pip install kubernetes"):
        KubeApi.connect(path, user_agent="t")
    stub.calls.append(reply(thing("n")))
    plain = KubeApi.connect(stub.kubeconfig(tmp_path / "plain"), user_agent="t")
    assert plain.get(NODES, "n") == thing("n")


_PROBE = """
import sys
from dra.kube.client import KubeApi
from dra.kube.reflector import Reflector
from dra.kube.lease import LeaderElector
from dra.kube.events import EventRecorder
KubeApi.connect(sys.argv[1], user_agent="probe")
typed = ("kubernetes.client.models.", "kubernetes.client.api.")
print(" ".join(name for name in sys.modules if name.startswith(typed)))
print([line for line in open("/proc/self/status") if line.startswith("VmRSS")][0].split()[1])
"""


@pytest.mark.parametrize(("cluster", "most"), [({}, 38), ({"tls-server-name": "other"}, 52)])
def test_the_transport_imports_no_typed_model_and_stays_small(
    stub: Stub, tmp_path: Path, cluster: Obj, most: int
) -> None:
    """Typed models cost 60-80 MiB, and a node's plugin has 70 MiB for everything."""
    probe = subprocess.run(
        [sys.executable, "-c", _PROBE, stub.kubeconfig(tmp_path / "k", cluster=cluster)],
        check=True,
        capture_output=True,
        text=True,
    )
    typed, resident = probe.stdout.splitlines()
    mebibytes = int(resident) / 1024
    print(f"RSS with all of dra.kube connected: {mebibytes:.1f} MiB")  # noqa: T201 - for -s
    assert typed == ""
    assert mebibytes < most
