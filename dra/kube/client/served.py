"""Check that the API server serves everything that the driver needs."""

import contextlib
import logging

from dra.common.resources import RESOURCE_CLAIMS
from dra.kube.client.transport import KubeApi
from dra.kube.errors import KubeError, NotServedError, ObjectNotFoundError

_log = logging.getLogger(__name__)


def check_served(api: KubeApi) -> None:
    """Asks the server's discovery, which every account may read, for the GA API of claims.

    A server that does not answer, or not so, is left to those who try again.

    Raises:
        NotServedError: the server answered, and serves no ``resource.k8s.io/v1``.
    """
    group, wanted = RESOURCE_CLAIMS.group, RESOURCE_CLAIMS.version
    try:
        served = [each["version"] for each in api.read(f"/apis/{group}")["versions"]]
    except ObjectNotFoundError:
        served = []
    except KubeError as error:
        _log.warning("cannot tell yet whether the server serves %s: %s", group, error)
        return
    if wanted not in served:
        only = f"only {', '.join(served)}" if served else "no version"
        raise NotServedError(
            f"the API server{_named(api)} serves {only} of {group}, and the driver needs "
            f"{group}/{wanted}: upgrade Kubernetes to 1.34 or newer, where it is on by default, or "
            f"take it out of what --runtime-config turns off"
        )


def _named(api: KubeApi) -> str:
    with contextlib.suppress(KubeError):
        return f" ({api.read('/version').get('gitVersion', 'unknown version')})"
    return ""
