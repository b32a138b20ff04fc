"""The API server, where one can be reached: its version, and whether it serves what we need."""

from __future__ import annotations

import os
from pathlib import Path

from dra.common.resources import MIG_NODES, RESOURCE_CLAIMS
from dra.kube.client.transport import KubeApi
from dra.kube.connect.incluster import SERVICE_ACCOUNT
from dra.kube.errors import KubeConfigError, KubeError, ObjectNotFoundError
from kubeletplugin.check.items import Item
from kubeletplugin.check.notebook import Notebook

_SECONDS = 5.0


def examine(
    notebook: Notebook, kubeconfig: str | None, *, service_account: Path = SERVICE_ACCOUNT
) -> None:
    """Ask the API server, if there is a configuration for one."""
    item = Item.CLUSTER
    named = kubeconfig or os.environ.get("KUBECONFIG")
    if not named and not (service_account / "token").is_file():
        notebook.note(item, "not asked: no kubeconfig and no service account", "--kubeconfig FILE")
        return
    try:
        api = KubeApi.connect(
            kubeconfig,
            user_agent="kubeletplugin-check",
            timeout_seconds=_SECONDS,
            service_account=service_account,
        )
    except KubeConfigError as error:
        notebook.note(item, f"not asked: {error}")
        return
    try:
        _ask(notebook, api)
    except KubeError as error:
        notebook.note(item, f"the API server does not answer: {error}")
    finally:
        api.close()


def _ask(notebook: Notebook, api: KubeApi) -> None:
    item = Item.CLUSTER
    version = api.read("/version").get("gitVersion", "unknown version")
    served = {group: _versions(api, group) for group in (RESOURCE_CLAIMS.group, MIG_NODES.group)}
    words = [f"{group}: {', '.join(found) or 'not served'}" for group, found in served.items()]
    notebook.fact(item, f"version {version}", *words)
    if RESOURCE_CLAIMS.version not in served[RESOURCE_CLAIMS.group]:
        wanted = f"{RESOURCE_CLAIMS.group}/{RESOURCE_CLAIMS.version}"
        notebook.missing(
            item, f"{version} does not serve {wanted}", "upgrade Kubernetes to 1.34 or newer"
        )
    elif not served[MIG_NODES.group]:
        notebook.missing(
            item, f"{version} does not serve {MIG_NODES.group}", "install the chart, with its CRD"
        )
    else:
        notebook.ok(item, f"{version} serves {' and '.join(words)}")


def _versions(api: KubeApi, group: str) -> tuple[str, ...]:
    try:
        return tuple(str(v["version"]) for v in api.read(f"/apis/{group}")["versions"])
    except ObjectNotFoundError:
        return ()
