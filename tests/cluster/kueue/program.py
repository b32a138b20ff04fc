"""Kueue's own program over a control plane, and a queue with a quota of our resources.

It is taken from the folder of the Kubernetes binaries, if it is there: the program ``kueue``, and
its resource definitions in ``kueue-crds`` (``config/components/crd/bases`` of its repository). It
runs without webhooks: Jobs are made suspended and pods with its gate, as its webhooks make them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from dra.common.resources import Obj, at
from hack.cluster.api import Api, ApiError
from hack.cluster.binaries import Binaries
from hack.cluster.chart import REPOSITORY
from hack.cluster.controlplane import ADMIN
from hack.cluster.installation import apply
from hack.cluster.machine import free_ports
from sim.processes import Process
from tests.cluster.harness.schedulersite import Site
from tests.docs.handbook.blocks import blocks

PROGRAM = "kueue"
QUEUE = "here"
GROUP = "kueue.x-k8s.io/v1beta2"
_NAMESPACE = "kueue-system"
"""Kueue leaves alone what is in its own."""
_OWN_ETC = (
    "mount -t tmpfs none /etc && mkdir -p /etc/kueue/metrics && "
    'cp -r "$0" /etc/kueue/metrics/certs && exec "$@"'
)
"""Kueue looks for the certificate of its metrics in a folder that no option names."""


def missing(binaries: Binaries) -> str:
    """Reason why Kueue cannot be run here; empty if it can."""
    if reason := binaries.missing((PROGRAM,)):
        return reason
    if not [*_definitions(binaries)]:
        return f"no kueue-crds/*.yaml in {binaries.directory}, Kueue's resource definitions"
    if os.geteuid() != 0:
        return "Kueue wants a file below /etc, which takes a mount of its own, and that root"
    return ""


def mapping(resource: str) -> Obj:
    """The part of Kueue's configuration that the handbook has for a resource."""
    for block in blocks(REPOSITORY / "docs" / "quota.md"):
        if "deviceClassMappings:" in block.text:
            made: Obj = yaml.safe_load(block.text)
            if at(made, "resources", "deviceClassMappings")[0]["name"] == resource:
                return made
    raise LookupError(resource)


@contextlib.contextmanager
def running(
    site: Site, binaries: Binaries, home: Path, mapped: Obj, quota: Mapping[str, str]
) -> Iterator[None]:
    """Kueue with that part of its configuration, and a queue with that quota, for a while."""
    (certificates := home / "certs").mkdir(parents=True)
    for definition in _definitions(binaries):
        apply(site.api, definition)
        site.wait("definition", lambda each=definition: _is_served(site.api, each))
    environment = {**os.environ, "KUBECONFIG": str(site.driver.control_plane.kubeconfig(ADMIN))}
    program = Process(
        PROGRAM,
        [binaries.path(PROGRAM), f"--config={_write_config(home, certificates, mapped)}"],
        logs=home,
        environment=environment,
        within=lambda: ["unshare", "-m", "sh", "-c", _OWN_ETC, str(certificates)],
    )
    program.start()
    try:
        for body in _queue(quota):
            site.wait(f"definition of {body['kind']}", lambda body=body: _applied(site.api, body))
        yield
    except BaseException:
        print(program.tail(lines=60))  # noqa: T201 - the reason of a failure
        raise
    finally:
        program.stop()


def _definitions(binaries: Binaries) -> Iterator[Obj]:
    for file in sorted((binaries.directory / "kueue-crds").glob("*.yaml")):
        yield from filter(None, yaml.safe_load_all(file.read_text()))


def _write_config(home: Path, certificates: Path, mapped: Obj) -> Path:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kueue"]
    command += ["-keyout", str(certificates / "tls.key"), "-out", str(certificates / "tls.crt")]
    subprocess.run(command, check=True, capture_output=True)
    health, webhook = free_ports(2)
    content = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": _NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": webhook, "host": "127.0.0.1", "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["batch/job", "pod"]},
        "featureGates": {"VisibilityOnDemand": False},
        **mapped,
    }
    (config := home / "kueue.yaml").write_text(yaml.safe_dump(content))
    return config


def _queue(quota: Mapping[str, str]) -> Iterator[Obj]:
    resources = [{"name": name, "nominalQuota": amount} for name, amount in quota.items()]
    flavor = {"name": QUEUE, "resources": resources}
    group = {"coveredResources": [*quota], "flavors": [flavor]}
    specs = {
        "ResourceFlavor": {},
        "ClusterQueue": {"namespaceSelector": {}, "resourceGroups": [group]},
        "LocalQueue": {"clusterQueue": QUEUE},
    }
    for kind, spec in specs.items():
        metadata = {"name": QUEUE} | ({"namespace": "default"} if kind == "LocalQueue" else {})
        yield {"apiVersion": GROUP, "kind": kind, "metadata": metadata, "spec": spec}


def _is_served(api: Api, definition: Obj) -> bool:
    spec = definition["spec"]
    (version,) = (each["name"] for each in spec["versions"] if each["storage"])
    with contextlib.suppress(ApiError):  # Kueue asks for them by discovery, which comes last
        found = api.request("GET", f"/apis/{spec['group']}/{version}")["resources"]
        return spec["names"]["plural"] in {each["name"] for each in found}
    return False


def _applied(api: Api, body: Obj) -> bool:
    with contextlib.suppress(ApiError):
        return bool(apply(api, body))
    return False
