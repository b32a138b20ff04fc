"""Items that a check looks at; docs/hardware.md names for each belief the item that settles it."""

from __future__ import annotations

from enum import StrEnum


class Item(StrEnum):
    """One thing that is looked at, by the name that the report and the docs have for it.

    Those of the first group are read; those of the second are settled by ``--create``.
    """

    KERNEL_MODULE = "kernel-module"
    NVML = "nvml"
    PERMISSION = "permission"
    PID_NAMESPACE = "pid-namespace"
    GPUS = "gpus"
    PROFILES = "profiles"
    LOOKUP_BY_UUID = "lookup-by-uuid"
    AFTER_LOSS = "after-loss"
    ATTACH = "attach"
    CAPABILITIES = "capabilities"
    DEVICE_NODES = "device-nodes"
    LIBRARIES = "libraries"
    HOOK = "hook"
    CDI = "cdi"
    CONTAINER_RUNTIME = "container-runtime"
    KUBELET = "kubelet"
    NEIGHBOURS = "neighbours"
    CLUSTER = "cluster"

    MIG_UUID = "mig-uuid"
    DELIVERED = "delivered"
    FULL_COMPUTE = "full-compute"
    TAKEN_PLACEMENT = "taken-placement"
    BUSY = "busy"
    PROCESSES = "processes"
    INSTANCE_IDS = "instance-ids"
    INSTANCE_LINGERS = "instance-lingers"
    CAPABILITY_DESCRIPTOR = "capability-descriptor"
    CAPABILITY_DIRECTORY = "capability-directory"
    CONFIG_EVENTS = "config-events"
    SHUTDOWN = "shutdown"
    TIMES = "times"
