"""One reading of the cluster: the facts from which explanations are worked out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cli.kept import kept
from cli.output import CliError, Exit, ago
from cli.session import Session
from cli.site import Site, survey
from dra.claims.claims import read_claim
from dra.claims.classes import DeviceClass, read_class
from dra.claims.conditions import claims_allocated
from dra.claims.reader import KnownClaim
from dra.common.resources import (
    DEVICE_CLASSES,
    EVENTS,
    LEASES,
    MIG_NODES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    STORAGE_CLASSES,
    Obj,
    ObjectKey,
    Resource,
    at,
)
from dra.gangs.membership import KINDS, PodGroups, read_membership, read_pod_group
from dra.gpu.names import finalizer
from dra.kube.client import first_served
from dra.kube.errors import ForbiddenError, ObjectNotFoundError
from dra.kube.lease import LEADERS, leader_lease
from dra.pods.nodefit import read_node
from dra.pods.pods import Pod, read_pod
from dra.pods.residents import Hosts
from dra.pods.volumes import read_storage_class, read_volume, read_volume_claim

LIVE = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of the pods that are read: those that have not ended."""
COMPONENT = "app.kubernetes.io/component"
PLUGIN = "kubelet-plugin"
CONTROLLER = "controller"
CHART_NAME = "dra-driver-nvidia-mig"
_RENEWED = timedelta(seconds=5)
"""Twice the time in which a leader renews its lease (``dra.kube.lease.LeaseTimes``)."""


@dataclass(frozen=True, slots=True)
class Told:
    """Reason and message that an event, or a condition, has for an object.

    ``source``: component that sent the event; empty for a condition.
    """

    source: str
    reason: str
    message: str
    at: str


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The cluster at one time.

    ``leader``: name of the controller that allocates; empty if none does, None if that could not be
    read. ``led``: words for the age of its lease, if that is older than a leader lets it become.
    ``groups``: objects that say how large gangs are. ``unread``: kinds that could not be listed for
    want of permission.
    """

    driver: str
    site: Site
    installed: bool
    claims: Mapping[ObjectKey, KnownClaim]
    pods: Mapping[ObjectKey, Pod]
    hosts: Hosts
    classes: Mapping[str, DeviceClass]
    templates: frozenset[ObjectKey] = frozenset()
    events: tuple[Obj, ...] = ()
    leader: str | None = None
    led: str = ""
    groups: PodGroups = field(default_factory=PodGroups)
    unread: tuple[str, ...] = field(default=())
    nodes: Mapping[str, Obj] = field(default_factory=dict)
    class_objects: tuple[Obj, ...] = ()

    @property
    def finalizer(self) -> str:
        """Our finalizer, whose name is also that of our scheduling gate."""
        return finalizer(self.driver)

    @property
    def schedulers(self) -> frozenset[str]:
        """Every scheduler that a pod names: the controller alone knows which of them are served."""
        return frozenset(pod.scheduler for pod in self.pods.values())

    @property
    def delegated(self) -> frozenset[str]:
        """Extended resources that a DeviceClass serves."""
        return frozenset(c.extended_resource for c in self.classes.values() if c.extended_resource)

    def pods_of(self, claim: ObjectKey) -> list[Pod]:
        """The pods that refer to a claim, those that wait first."""
        found = [p for p in self.pods.values() if claim in p.claim_keys]
        return sorted(found, key=lambda p: (not p.pending, p.key))

    @property
    def is_partial(self) -> bool:
        """True if too little may be read to judge what the controller does."""
        needed = (MIG_NODES, NODES, DEVICE_CLASSES, RESOURCE_CLAIMS)
        return not {str(each) for each in needed}.isdisjoint(self.unread)

    def condition(self, pod: Pod) -> Told | None:
        """The pod's condition that says why its claims wait; None if it has no such condition.

        Unlike an event, a condition can only be written by those who may write the status of pods.
        """
        for each in at(pod.obj, "status", "conditions"):
            if each["type"] == claims_allocated(self.driver) and each["status"] == "False":
                reason, message = each.get("reason") or "", each.get("message") or ""
                return Told("", reason, message, each.get("lastTransitionTime") or "")
        return None

    def told(self, obj: Obj) -> tuple[Told, ...]:
        """The latest event of each source about an object, the newest first."""
        uid = obj["metadata"]["uid"]
        latest: dict[str, Told] = {}
        for event in self.events:
            if event["involvedObject"].get("uid") != uid:
                continue
            source = at(event, "source", "component") or event.get("reportingComponent", "")
            last = at(event, "series", "lastObservedTime") or event.get("lastTimestamp")
            when = str(last or event.get("eventTime") or "")
            if source not in latest or when >= latest[source].at:
                latest[source] = Told(source, event["reason"], event.get("message", ""), when)
        return tuple(sorted(latest.values(), key=lambda t: t.at, reverse=True))


def read_site(session: Session) -> Site:
    """The nodes with MIG GPUs, and who holds what there.

    Raises:
        CliError: the CustomResourceDefinition is not installed.
    """
    try:
        mignodes = session.api.list(MIG_NODES).items
    except ObjectNotFoundError as error:
        raise CliError(
            Exit.NOT_FOUND,
            f"the cluster does not know {MIG_NODES}: is the driver installed? (kubectl mig doctor)",
        ) from error
    claims = session.api.list(RESOURCE_CLAIMS, keep=kept(session.driver)[RESOURCE_CLAIMS]).items
    read = map(read_claim, claims)
    return survey(mignodes, read, driver=session.driver, now=session.now())


Lister = Callable[..., list[Obj]]
"""Lists objects of a kind, by the keywords of ``KubeApi.list``."""


def read_facts(session: Session, namespace: str, *, listed: Lister | None = None) -> ClusterFacts:
    """All facts that may be read; events and templates of ``namespace`` alone, if it is given.

    ``listed``: lists objects instead of the session's client.

    Raises:
        CliError: claims may not be read, without which there is nothing to explain.
        ForbiddenError: claims or pods of the namespace may not be read either.
    """
    unread: list[str] = []
    keep = kept(session.driver)

    def asked(resource: Resource, **selection: str) -> list[Obj]:
        return session.api.list(resource, keep=keep.get(resource), **selection).items

    listed = listed or asked

    def all_of(resource: Resource, **selection: str) -> list[Obj]:
        try:
            return listed(resource, **selection)
        except ForbiddenError:
            unread.append(str(resource))
            return []

    try:
        mignodes, installed = all_of(MIG_NODES), True
    except ObjectNotFoundError:
        mignodes, installed = [], False
    claims = all_of(RESOURCE_CLAIMS)
    if str(RESOURCE_CLAIMS) in unread:
        if not namespace:
            raise CliError(Exit.FORBIDDEN, f"not allowed to list {RESOURCE_CLAIMS}")
        claims = listed(RESOURCE_CLAIMS, namespace=namespace)
    pod_objects = all_of(PODS, field_selector=LIVE)
    if str(PODS) in unread:
        pod_objects = listed(PODS, namespace=namespace)
    pods = {p.key: p for p in map(read_pod, pod_objects)}
    known = {
        (c["metadata"]["namespace"], c["metadata"]["name"]): KnownClaim(read_claim(c), c)
        for c in claims
    }
    read = (each.claim for each in known.values())
    templates = all_of(RESOURCE_CLAIM_TEMPLATES, namespace=namespace) if namespace else []
    events = all_of(EVENTS, namespace=namespace) if namespace else []
    nodes = all_of(NODES)
    hosts = _hosts(nodes, pods.values(), known)
    _read_volumes(all_of, hosts, unread)
    groups = _pod_groups(session, pods.values(), all_of)
    class_objects = all_of(DEVICE_CLASSES)
    classes = (read_class(o, session.driver) for o in class_objects)
    holder, led = find_leader(session, all_of)
    leader = None if str(LEASES) in unread else holder
    return ClusterFacts(
        driver=session.driver,
        site=survey(mignodes, read, driver=session.driver, now=session.now()),
        installed=installed,
        claims=known,
        pods=pods,
        hosts=hosts,
        classes={c.name: c for c in classes},
        templates=frozenset((namespace, t["metadata"]["name"]) for t in templates),
        events=tuple(events),
        leader=leader,
        led=led,
        groups=groups,
        unread=tuple(unread),
        nodes={n["metadata"]["name"]: n for n in nodes},
        class_objects=tuple(class_objects),
    )


def _pod_groups(session: Session, pods: Iterable[Pod], all_of: Lister) -> PodGroups:
    """The objects of the kinds that ``pods`` name, as far as they are served and may be read."""
    memberships = (read_membership(pod.obj) for pod in pods)
    named = {m.group.kind for m in memberships if m is not None and m.group is not None}
    groups = PodGroups()
    for kind in [kind for kind in KINDS if kind in named]:
        resource = first_served(session.api, [kind.at_version(v) for v in kind.versions])
        if resource is None:
            continue
        try:
            objects = all_of(resource)
        except ObjectNotFoundError:
            continue
        groups.kinds.add(kind)
        for obj in objects:
            groups.set(read_pod_group(kind, obj))
    return groups


def _hosts(
    nodes: Iterable[Obj], pods: Iterable[Pod], claims: Mapping[ObjectKey, KnownClaim]
) -> Hosts:
    """Nodes, and the pods that run on them or that an allocation sends there."""
    hosts = Hosts()
    for obj in nodes:
        hosts.set_node(read_node(obj))
    for pod in pods:
        held = (claims[k].claim.allocation for k in pod.claim_keys if k in claims)
        node = pod.node or next((a.node for a in held if a is not None and a.node), "")
        if node and pod.live:
            hosts.place(pod, node)
    return hosts


def _read_volumes(all_of: Lister, hosts: Hosts, unread: Sequence[str]) -> None:
    """Read volumes and labels of namespaces into ``hosts``.

    Volumes are left out unless all kinds that they need may be read.
    """
    kinds = (PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES)
    try:
        claims, volumes, classes = map(all_of, kinds)
    except ObjectNotFoundError:  # a server without volumes, such as the simulator's
        return
    for namespace in all_of(NAMESPACES):
        labels = at(namespace, "metadata", "labels", default={})
        hosts.residents.set_namespace(namespace["metadata"]["name"], labels)
    if not {*map(str, kinds)}.isdisjoint(unread):
        return
    for obj in claims:
        hosts.volumes.set_claim(read_volume_claim(obj))
    for obj in volumes:
        hosts.volumes.set_volume(read_volume(obj))
    for obj in classes:
        hosts.volumes.set_class(read_storage_class(obj))
    hosts.volumes.listed = True


def is_component(pod: Obj, component: str) -> bool:
    """True if a pod is the driver's ``component``, by its labels and image."""
    labels = at(pod, "metadata", "labels", default={})
    part_of = labels.get("app.kubernetes.io/name") == CHART_NAME
    image = any(CHART_NAME in c.get("image", "") for c in at(pod, "spec", "containers"))
    return labels.get(COMPONENT) == component and (part_of or image)


def find_leader(session: Session, listed: Lister) -> tuple[str, str]:
    """Holder of the controller's lease, empty if there is none, and words if it may be gone."""
    named = f"metadata.name={leader_lease(session.driver)}"
    leases = listed(LEASES, namespace=LEADERS, field_selector=named)
    found = (_holder(lease, session.now()) for lease in leases)
    return next((each for each in found if each[0]), ("", ""))


def _holder(lease: Obj, now: datetime) -> tuple[str, str]:
    """Holder of a lease now, empty when it is free or has run out, and words about its age."""
    spec = at(lease, "spec", default={})
    holder, renewed = spec.get("holderIdentity"), spec.get("renewTime")
    if not holder or not renewed:
        return "", ""
    last, lasts = datetime.fromisoformat(renewed), spec.get("leaseDurationSeconds") or 0
    if last + timedelta(seconds=float(lasts)) <= now:
        return "", ""
    late = now - last > _RENEWED
    words = f"its lease was renewed {ago(last, now)} ago, and runs out after {lasts} s"
    return str(holder), f"{words}: it may be gone" if late else ""
