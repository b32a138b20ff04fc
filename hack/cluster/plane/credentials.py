"""Credentials of the cluster: of users, of service accounts, and of the API server to kubelet."""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


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


class TokenFile:
    """The API server's --token-auth-file: all users must be in it before the server starts."""

    def __init__(self, path: Path, users: tuple[User, ...]) -> None:
        self.path = path
        self._tokens = {user.name: secrets.token_hex(16) for user in users}
        rows = [
            f'{self._tokens[user.name]},{user.name},{user.name},"{",".join(user.groups)}"\n'
            for user in users
        ]
        path.write_text("".join(rows))

    def token(self, user: User) -> str:
        """The bearer token of a user."""
        return self._tokens[user.name]


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
