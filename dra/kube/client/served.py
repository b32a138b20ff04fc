"""Checks of what the API server serves: all that the driver needs, and what it makes use of."""

import contextlib
import logging
from collections.abc import Sequence

from dra.common.resources import RESOURCE_CLAIMS, Resource
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


def first_served(api: KubeApi, resources: Sequence[Resource]) -> Resource | None:
    """The first of ``resources`` that the server serves; None where it serves none of them.

    A server that does not answer is taken to serve the first: whoever lists it will see.
    """
    for resource in resources:
        try:
            found = api.read(f"/apis/{resource.group}/{resource.version}")["resources"]
        except ObjectNotFoundError:
            continue
        except KubeError as error:
            _log.warning("cannot tell whether the server serves %s: %s", resource, error)
            return resources[0]
        if any(each["name"] == resource.plural for each in found):
            return resource
    return None


def _named(api: KubeApi) -> str:
    with contextlib.suppress(KubeError):
        return f" ({api.read('/version').get('gitVersion', 'unknown version')})"
    return ""
