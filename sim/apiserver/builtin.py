"""Shapes of the built-in kinds, from the list types and patch strategies of the 1.36 OpenAPI.

The kinds of resource.k8s.io and the lease are described completely, so that a misspelt field is
dropped here too. Of other kinds only the lists and atomic values are: their fields pass.
"""

from __future__ import annotations

from typing import Any

from sim.apiserver.shapes import (
    ANY,
    BOOLEAN,
    INTEGER,
    MICRO_TIME,
    QUANTITY,
    TEXT,
    TIME,
    Shape,
    keyed,
    list_of,
    map_of,
    partial,
    set_of,
    struct,
)

_TEXTS = list_of(TEXT)
_LABELS = map_of(TEXT)

METADATA = partial(
    name=TEXT,
    generateName=TEXT,
    namespace=TEXT,
    uid=TEXT,
    resourceVersion=TEXT,
    labels=_LABELS,
    annotations=_LABELS,
    finalizers=set_of(merge=True),
    ownerReferences=keyed(partial(atomic=True), "uid"),
    managedFields=list_of(),
    creationTimestamp=TIME,
    deletionTimestamp=TIME,
    deletionGracePeriodSeconds=INTEGER,
    generation=INTEGER,
)
_CONDITION = struct(
    type=TEXT,
    status=TEXT,
    observedGeneration=INTEGER,
    lastTransitionTime=TIME,
    reason=TEXT,
    message=TEXT,
)


def kind(**fields: Shape) -> Shape:
    """Describes a whole object of which other top-level fields are dropped."""
    common = {"apiVersion": TEXT, "kind": TEXT, "metadata": METADATA}
    return Shape("struct", common | fields, closed=True)


# --- resource.k8s.io ----------------------------------------------------------------------------
_SELECTORS = list_of(struct(cel=struct(expression=TEXT)))
_TOLERATIONS = list_of(
    struct(key=TEXT, operator=TEXT, value=TEXT, effect=TEXT, tolerationSeconds=INTEGER)
)
_CAPACITY_REQUESTS = struct(requests=map_of(QUANTITY))
_EXACT: dict[str, Any] = {
    "deviceClassName": TEXT,
    "selectors": _SELECTORS,
    "allocationMode": TEXT,
    "count": INTEGER,
    "tolerations": _TOLERATIONS,
    "capacity": _CAPACITY_REQUESTS,
}
_OPAQUE = struct(driver=TEXT, parameters=ANY)
_REQUIREMENT = struct(key=TEXT, operator=TEXT, values=_TEXTS)
NODE_SELECTOR = struct(
    atomic=True,
    nodeSelectorTerms=list_of(
        struct(matchExpressions=list_of(_REQUIREMENT), matchFields=list_of(_REQUIREMENT))
    ),
)
_CLAIM_SPEC = struct(
    devices=struct(
        requests=list_of(
            struct(
                name=TEXT,
                exactly=struct(adminAccess=BOOLEAN, **_EXACT),
                firstAvailable=list_of(struct(name=TEXT, **_EXACT)),
            )
        ),
        constraints=list_of(struct(requests=_TEXTS, matchAttribute=TEXT, distinctAttribute=TEXT)),
        config=list_of(struct(requests=_TEXTS, opaque=_OPAQUE)),
    )
)
_BINDING: dict[str, Any] = {"bindingConditions": _TEXTS, "bindingFailureConditions": _TEXTS}
_ALLOCATION = struct(
    devices=struct(
        results=list_of(
            struct(
                request=TEXT,
                driver=TEXT,
                pool=TEXT,
                device=TEXT,
                adminAccess=BOOLEAN,
                tolerations=_TOLERATIONS,
                shareID=TEXT,
                consumedCapacity=map_of(QUANTITY),
                **_BINDING,
            )
        ),
        config=list_of(struct(source=TEXT, requests=_TEXTS, opaque=_OPAQUE)),
    ),
    nodeSelector=NODE_SELECTOR,
    allocationTimestamp=TIME,
)
RESOURCE_CLAIM = kind(
    spec=_CLAIM_SPEC,
    status=struct(
        allocation=_ALLOCATION,
        reservedFor=keyed(struct(apiGroup=TEXT, resource=TEXT, name=TEXT, uid=TEXT), "uid"),
        devices=keyed(
            struct(
                driver=TEXT,
                pool=TEXT,
                device=TEXT,
                shareID=TEXT,
                conditions=keyed(_CONDITION, "type", merge=False),
                data=ANY,
                networkData=struct(interfaceName=TEXT, ips=_TEXTS, hardwareAddress=TEXT),
            ),
            "driver",
            "device",
            "pool",
            "shareID",
            merge=False,
        ),
    ),
)
RESOURCE_CLAIM_TEMPLATE = kind(spec=struct(metadata=METADATA, spec=_CLAIM_SPEC))
DEVICE_CLASS = kind(
    spec=struct(
        selectors=_SELECTORS,
        config=list_of(struct(opaque=_OPAQUE)),
        extendedResourceName=TEXT,
    )
)
_ATTRIBUTE = struct(
    int=INTEGER,
    bool=BOOLEAN,
    string=TEXT,
    version=TEXT,
    ints=list_of(INTEGER),
    bools=list_of(BOOLEAN),
    strings=_TEXTS,
    versions=_TEXTS,
)
_COUNTERS = map_of(struct(value=QUANTITY))
_CAPACITY = struct(
    value=QUANTITY,
    requestPolicy=struct(
        default=QUANTITY,
        validValues=list_of(QUANTITY),
        validRange=struct(min=QUANTITY, max=QUANTITY, step=QUANTITY),
    ),
)
RESOURCE_SLICE = kind(
    spec=struct(
        driver=TEXT,
        pool=struct(name=TEXT, generation=INTEGER, resourceSliceCount=INTEGER),
        nodeName=TEXT,
        nodeSelector=NODE_SELECTOR,
        allNodes=BOOLEAN,
        perDeviceNodeSelection=BOOLEAN,
        sharedCounters=list_of(struct(name=TEXT, counters=_COUNTERS)),
        devices=list_of(
            struct(
                name=TEXT,
                attributes=map_of(_ATTRIBUTE),
                capacity=map_of(_CAPACITY),
                consumesCounters=list_of(struct(counterSet=TEXT, counters=_COUNTERS)),
                nodeName=TEXT,
                nodeSelector=NODE_SELECTOR,
                allNodes=BOOLEAN,
                taints=list_of(struct(key=TEXT, value=TEXT, effect=TEXT, timeAdded=TIME)),
                bindsToNode=BOOLEAN,
                allowMultipleAllocations=BOOLEAN,
                nodeAllocatableResourceMappings=map_of(
                    struct(capacityKey=TEXT, allocationMultiplier=QUANTITY)
                ),
                **_BINDING,
            )
        ),
    )
)

# --- core ---------------------------------------------------------------------------------------
_REFERENCE = partial(atomic=True)
_CONDITIONS = keyed(ANY, "type")
_CONTAINER = partial(
    env=keyed(partial(valueFrom=map_of(_REFERENCE)), "name"),
    ports=keyed(ANY, "containerPort", "protocol", defaults={"protocol": "TCP"}),
    volumeMounts=keyed(ANY, "mountPath"),
    volumeDevices=keyed(ANY, "devicePath"),
    resources=partial(claims=keyed(ANY, "name", merge=False)),
)
_POD_SPEC = partial(
    containers=keyed(_CONTAINER, "name"),
    initContainers=keyed(_CONTAINER, "name"),
    ephemeralContainers=keyed(_CONTAINER, "name"),
    volumes=keyed(ANY, "name"),
    imagePullSecrets=keyed(_REFERENCE, "name"),
    hostAliases=keyed(ANY, "ip"),
    resourceClaims=keyed(ANY, "name"),
    schedulingGates=keyed(ANY, "name"),
    topologySpreadConstraints=keyed(
        partial(labelSelector=_REFERENCE), "topologyKey", "whenUnsatisfiable"
    ),
    nodeSelector=map_of(TEXT, atomic=True),
    affinity=partial(
        nodeAffinity=partial(requiredDuringSchedulingIgnoredDuringExecution=NODE_SELECTOR)
    ),
)
POD = kind(
    spec=_POD_SPEC,
    status=partial(
        conditions=_CONDITIONS,
        podIPs=keyed(ANY, "ip"),
        resourceClaimStatuses=keyed(struct(name=TEXT, resourceClaimName=TEXT), "name"),
    ),
)
NODE = kind(
    spec=partial(podCIDRs=set_of(merge=True)),
    status=partial(conditions=_CONDITIONS, addresses=keyed(ANY, "type")),
)
NAMESPACE = kind(spec=partial(finalizers=list_of(TEXT)), status=partial(conditions=_CONDITIONS))
EVENT = kind(
    involvedObject=_REFERENCE,
    reason=TEXT,
    message=TEXT,
    source=struct(component=TEXT, host=TEXT),
    firstTimestamp=TIME,
    lastTimestamp=TIME,
    count=INTEGER,
    type=TEXT,
    eventTime=MICRO_TIME,
    series=struct(count=INTEGER, lastObservedTime=MICRO_TIME),
    action=TEXT,
    related=_REFERENCE,
    reportingComponent=TEXT,
    reportingInstance=TEXT,
)
CONFIG_MAP = kind(data=map_of(TEXT), binaryData=map_of(TEXT), immutable=BOOLEAN)
LEASE = kind(
    spec=struct(
        holderIdentity=TEXT,
        leaseDurationSeconds=INTEGER,
        acquireTime=MICRO_TIME,
        renewTime=MICRO_TIME,
        leaseTransitions=INTEGER,
        strategy=TEXT,
        preferredHolder=TEXT,
    )
)

# --- the rest -----------------------------------------------------------------------------------
CUSTOM_RESOURCE_DEFINITION = kind(
    spec=ANY, status=partial(conditions=keyed(ANY, "type", merge=False))
)
PLAIN = partial(metadata=METADATA)
