"""Objects that say how large gangs are, read where pods name any."""

from __future__ import annotations

from collections.abc import Iterable

from cli.shell.session import Session
from dra.gangs.membership import read_membership
from dra.gangs.minimum import PodGroups
from dra.gangs.podgroups import KINDS, read_pod_group
from dra.kube.client import first_served
from dra.kube.errors import ForbiddenError, ObjectNotFoundError
from dra.pods.pods import Pod


def read_pod_groups(session: Session, pods: Iterable[Pod], unread: list[str]) -> PodGroups:
    """The objects of the kinds that ``pods`` name, as far as they are served and may be read.

    Those that may not are added to ``unread``.
    """
    memberships = (read_membership(pod.obj) for pod in pods)
    named = {m.group.kind for m in memberships if m is not None and m.group is not None}
    groups = PodGroups()
    for kind in [kind for kind in KINDS if kind in named]:
        resource = first_served(session.api, [kind.at_version(v) for v in kind.versions])
        if resource is None:
            continue
        try:
            objects = session.api.list(resource).items
        except ForbiddenError:
            unread.append(str(resource))
            continue
        except ObjectNotFoundError:
            continue
        groups.kinds.add(kind)
        for obj in objects:
            groups.set(read_pod_group(kind, obj))
    return groups
