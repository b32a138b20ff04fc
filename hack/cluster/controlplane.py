"""Control plane on loopback: etcd, API server, controller manager and scheduler, and its users."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

from hack.cluster.api import Api, ApiError
from hack.cluster.binaries import Binaries
from hack.cluster.chart import NAMESPACE
from hack.cluster.machine import free_ports
from sim.processes import Process, wait_for


@dataclass(frozen=True, slots=True)
class User:
    """A user of the API server, as its audit log names it."""

    name: str
    groups: tuple[str, ...] = ()


ADMIN = User("admin", ("system:masters",))
SCHEDULER = User("system:kube-scheduler")
CONTROLLER_MANAGER = User("system:kube-controller-manager")
MIG_CONTROLLER = User("mig-controller", ("system:masters",))
MIG_PLUGIN = User("mig-plugin", ("system:masters",))


def node_user(node: str) -> User:
    """The identity of a node's kubelet, bound by the node authorizer."""
    return User(f"system:node:{node}", ("system:nodes",))


def write_tokens(path: Path, users: tuple[User, ...]) -> dict[str, str]:
    """Writes the API server's --token-auth-file, before it starts; returns the tokens by name."""
    tokens = {user.name: secrets.token_hex(16) for user in users}
    rows = [f'{tokens[u.name]},{u.name},{u.name},"{",".join(u.groups)}"\n' for u in users]
    path.write_text("".join(rows))
    return tokens


def write_service_account_key(path: Path) -> None:
    """Makes the RSA key that the API server and the controller manager share."""
    command = ["openssl", "genrsa", "-out", str(path), "2048"]
    subprocess.run(command, check=True, capture_output=True)


def write_kubelet_client(folder: Path) -> None:
    """Makes the certificate `client.crt` that kubelets trust, with `client.key`, in `folder`.

    It is its own authority, and kubelet asks the API server what its group may do.
    """
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30"]
    command += ["-subj", "/O=system:masters/CN=kube-apiserver-kubelet-client"]
    command += ["-keyout", str(folder / "client.key"), "-out", str(folder / "client.crt")]
    subprocess.run(command, check=True, capture_output=True)


def write_kubeconfig(path: Path, *, server: str, certificate: Path, token: str) -> None:
    """Writes a kubeconfig (JSON, which is YAML) with one context that trusts `certificate`."""
    authority = base64.b64encode(certificate.read_bytes()).decode()
    cluster = {"server": server, "certificate-authority-data": authority}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path.write_text(json.dumps(config, indent=2))


AUDIT_LOG = "audit.log"
"""File in the root of a control plane."""

POLICY: dict[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {
            "level": "Request",
            "users": [SCHEDULER.name],
            "verbs": ["update"],
            "resources": [{"group": "resource.k8s.io", "resources": ["resourceclaims/status"]}],
        },
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "Metadata", "userGroups": [f"system:serviceaccounts:{NAMESPACE}"]},
    ],
}
"""Every write, and everything that our accounts ask for, once, when it is answered.

Of kube-scheduler's updates of claims also what it wrote.
"""


NEVER = "24h"
"""Bound on a node's silence: fake nodes never report, and stay as ready as they were made."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Differences of a control plane from the usual.

    Args:
        controllers: what the controller manager runs, in the words of its --controllers.
        scheduling: whether there is a scheduler.
        gates: feature gates of all its programs.
        apis: API versions that are served beside the usual, such as `scheduling.k8s.io/v1alpha2`.
        scheduler_flags: further flags of the scheduler, without their dashes.
        emulated: an older version of Kubernetes, such as `1.34`, whose API and gates are served;
            a binary emulates up to three versions back.
        auditing: whether every write is logged, for tests that ask who made it.
    """

    controllers: tuple[str, ...] = ("*",)
    scheduling: bool = True
    gates: Mapping[str, bool] = field(default_factory=dict)
    apis: tuple[str, ...] = ()
    scheduler_flags: Mapping[str, str] = field(default_factory=dict)
    emulated: str = ""
    auditing: bool = True

    def flags(self) -> list[str]:
        """Flags of every program but etcd."""
        gates = ",".join(f"{name}={str(on).lower()}" for name, on in self.gates.items())
        flags = [f"--feature-gates={gates}"] if gates else []
        return flags + ([f"--emulated-version={self.emulated}"] if self.emulated else [])


USUAL = Setup()


class ControlPlane:
    """A control plane below one directory; entering starts it, leaving ends it.

    Args:
        binaries: must hold `binaries.CONTROL_PLANE`.
        root: an existing directory of ours; keeps data, keys, kubeconfigs and logs.
        users: who gets a token besides the administrator and the control plane itself.
        setup: what is other than usual.
    """

    def __init__(
        self,
        binaries: Binaries,
        root: Path,
        *,
        users: tuple[User, ...] = (),
        setup: Setup = USUAL,
    ) -> None:
        self.root = root
        self.setup = setup
        self.logs = root / "logs"
        self.logs.mkdir()
        self._binaries = binaries
        self._client_port, self._peer_port, port, *self._secure_ports = free_ports(5)
        self.server = f"https://127.0.0.1:{port}"
        self.certificate = root / "apiserver" / "apiserver.crt"
        builtin = (ADMIN, SCHEDULER, CONTROLLER_MANAGER)
        self._token_file = root / "tokens.csv"
        self._tokens = write_tokens(self._token_file, builtin + users)
        self._key = root / "service-account.key"
        self._kubelet_client = root / "kubelet-client"
        self.kubelet_authority = self._kubelet_client / "client.crt"
        self._processes: list[Process] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            write_service_account_key(self._key)
            self._kubelet_client.mkdir(exist_ok=True)
            write_kubelet_client(self._kubelet_client)
            etcd = self._start(stack, self._etcd())
            apiserver = self._start(stack, self._apiserver())
            wait_for("etcd and API server", lambda: self._serving(etcd, apiserver), timeout=90)
            others = [self._start(stack, self._controller_manager())]
            if self.setup.scheduling:
                others.append(self._start(stack, self._scheduler()))
            for process, port in zip(others, self._secure_ports, strict=False):
                wait_for(process.name, partial(self._healthy, process, port), timeout=60)
            wait_for("default service account", self._service_account, timeout=60)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def api(self) -> Api:
        """The API as its administrator."""
        return Api(self.server, self._tokens[ADMIN.name], certificate=self.certificate)

    def kubeconfig(self, user: User) -> Path:
        """Writes and returns the kubeconfig of one of the users that this server knows."""
        path = self.root / f"{user.name.replace(':', '-')}.kubeconfig"
        write_kubeconfig(
            path,
            server=self.server,
            certificate=self.certificate,
            token=self._tokens[user.name],
        )
        return path

    @contextlib.contextmanager
    def without_scheduler(self) -> Iterator[None]:
        """Nothing is scheduled inside the block.

        The scheduler that starts afterwards knows all that happened before it schedules anything,
        which one that was merely paused would not.
        """
        (scheduler,) = (each for each in self._processes if each.name == "kube-scheduler")
        scheduler.stop()
        try:
            yield
        finally:
            scheduler.start()

    @contextlib.contextmanager
    def without_storage(self) -> Iterator[Path]:
        """Etcd and the API server are stopped inside the block; yields etcd's data directory."""
        etcd, apiserver = (p for p in self._processes if p.name in ("etcd", "kube-apiserver"))
        apiserver.stop()
        etcd.stop()
        try:
            yield self.root / "etcd"
        finally:
            etcd.start()
            apiserver.start()
            wait_for("etcd and API server", lambda: self._serving(etcd, apiserver), timeout=90)

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time that each of its processes has used, by its name."""
        return {process.name: process.cpu_seconds for process in self._processes}

    def assert_running(self) -> None:
        """Raises ClusterError with its last words if a part ended."""
        for process in self._processes:
            process.assert_running()

    def tails(self) -> str:
        """The ends of the logs of all parts."""
        return "\n".join(process.tail(lines=10) for process in self._processes)

    def _start(self, stack: contextlib.ExitStack, process: Process) -> Process:
        self._processes.append(process)
        stack.callback(process.stop)
        process.start()
        return process

    def _serving(self, *processes: Process) -> bool:
        for process in processes:
            process.assert_running()
        if not self.certificate.exists():
            return False
        with contextlib.suppress(OSError, ApiError):
            return bool(self.api.request("GET", "/readyz") == {"text": "ok"})
        return False

    def _service_account(self) -> bool:
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        with contextlib.suppress(ApiError):
            return bool(self.api.request("GET", path))
        return False

    @staticmethod
    def _healthy(process: Process, port: int) -> bool:
        process.assert_running()
        with contextlib.suppress(OSError), _anonymous(port, "/healthz", seconds=5) as answer:
            return bool(answer.status == HTTPStatus.OK)
        return False

    def _process(self, name: str, **flags: str) -> Process:
        argv = [self._binaries.path(name)]
        argv += [f"--{flag.replace('_', '-')}={value}" for flag, value in flags.items()]
        if name.startswith("kube-"):
            argv += self.setup.flags()
        return Process(name, argv, logs=self.logs)

    def _etcd(self) -> Process:
        client = f"http://127.0.0.1:{self._client_port}"
        peer = f"http://127.0.0.1:{self._peer_port}"
        return self._process(
            "etcd",
            data_dir=str(self.root / "etcd"),
            listen_client_urls=client,
            advertise_client_urls=client,
            listen_peer_urls=peer,
            initial_advertise_peer_urls=peer,
            initial_cluster=f"default={peer}",
            unsafe_no_fsync="true",
        )

    def _apiserver(self) -> Process:
        auditing = {}
        if self.setup.auditing:
            policy = self.root / "audit-policy.json"
            policy.write_text(json.dumps(POLICY))
            auditing = {
                "audit_policy_file": str(policy),
                "audit_log_path": str(self.root / AUDIT_LOG),
            }
        return self._process(
            "kube-apiserver",
            etcd_servers=f"http://127.0.0.1:{self._client_port}",
            bind_address="127.0.0.1",
            advertise_address="127.0.0.1",
            endpoint_reconciler_type="none",
            secure_port=self.server.rpartition(":")[2],
            cert_dir=str(self.certificate.parent),
            token_auth_file=str(self._token_file),
            authorization_mode="Node,RBAC",
            enable_admission_plugins="NodeRestriction",
            service_cluster_ip_range="10.0.0.0/24",
            service_account_issuer="https://kubernetes.default.svc",
            service_account_key_file=str(self._key),
            service_account_signing_key_file=str(self._key),
            allow_privileged="true",
            # For `kubectl logs` and `exec`. The names of the nodes are known to nobody else.
            kubelet_preferred_address_types="InternalIP",
            kubelet_client_certificate=str(self.kubelet_authority),
            kubelet_client_key=str(self._kubelet_client / "client.key"),
            **auditing,
            **self._further_apis(),
        )

    def _further_apis(self) -> dict[str, str]:
        served = ",".join(f"{api}=true" for api in self.setup.apis)
        return {"runtime_config": served} if served else {}

    def _controller_manager(self) -> Process:
        return self._process(
            "kube-controller-manager",
            kubeconfig=str(self.kubeconfig(CONTROLLER_MANAGER)),
            use_service_account_credentials="true",
            service_account_private_key_file=str(self._key),
            root_ca_file=str(self.certificate),
            leader_elect="false",
            controllers=",".join(self.setup.controllers),
            kube_api_qps="500",
            kube_api_burst="500",
            concurrent_namespace_syncs="50",
            node_monitor_grace_period=NEVER,
            bind_address="127.0.0.1",
            secure_port=str(self._secure_ports[0]),
            cert_dir=str(self.root / "controller-manager"),
        )

    def _scheduler(self) -> Process:
        return self._process(
            "kube-scheduler",
            kubeconfig=str(self.kubeconfig(SCHEDULER)),
            leader_elect="false",
            bind_address="127.0.0.1",
            secure_port=str(self._secure_ports[1]),
            cert_dir=str(self.root / "scheduler"),
            **self.setup.scheduler_flags,
        )


def _anonymous(port: int, path: str, *, seconds: float) -> Any:
    """The answer of a part of the control plane to anybody, to be closed."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # each makes a certificate for itself
    return urllib.request.urlopen(
        f"https://127.0.0.1:{port}{path}", timeout=seconds, context=context
    )
