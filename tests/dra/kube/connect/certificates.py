"""A certificate authority for one test run, made with the openssl program."""

import base64
import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Certificates:
    folder: Path

    def path(self, name: str) -> Path:
        return self.folder / name

    def server_context(self) -> ssl.SSLContext:
        """TLS as an API server does it: clients without a certificate are turned away."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path("server.crt"), self.path("server.key"))
        context.load_verify_locations(self.path("ca.crt"))
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def cluster(self) -> dict[str, str]:
        """What a kubeconfig says of a cluster whose server is to be verified."""
        return {"certificate-authority-data": inline(self.path("ca.crt"))}

    def user(self) -> dict[str, str]:
        """What a kubeconfig says of a user who shows a certificate."""
        return {
            "client-certificate-data": inline(self.path("client.crt")),
            "client-key-data": inline(self.path("client.key")),
        }


def make_certificates(folder: Path) -> Certificates:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl program")

    def run(*args: str) -> None:
        subprocess.run([openssl, *args], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    authority = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    run(
        *("req", "-x509", *key, "-days", "2", "-subj", "/CN=test-ca", *authority),
        *("-keyout", "ca.key", "-out", "ca.crt"),
    )
    for name, extension in (
        ("server", "subjectAltName=IP:127.0.0.1"),
        ("client", "extendedKeyUsage=clientAuth"),
    ):
        (folder / f"{name}.ext").write_text(
            f"{extension}\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
        )
        run("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        run(
            *("x509", "-req", "-days", "2", "-in", f"{name}.csr", "-out", f"{name}.crt"),
            *("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.ext"),
        )
    return Certificates(folder)


def inline(path: Path) -> str:
    """A file as kubeconfigs carry it."""
    return base64.b64encode(path.read_bytes()).decode()
