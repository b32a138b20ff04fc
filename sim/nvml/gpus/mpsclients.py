"""Memory that a client of an MPS daemon may allocate, by its environment and the daemon's limit.

The client's ``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`` is ``<device>=<number>[M|G]``, by commas (NVIDIA's
Multi-Process Service guide). The daemon's limit holds on a whole GPU; in a slice it was measured
not to (Shiritai/k8s-dra-workshop, module 11): ``daemon_holds`` says which is played.
"""

from collections.abc import Mapping

_UNITS = {"M": 1, "G": 1024}
_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


def allocates(
    mebibytes: int,
    *,
    environment: Mapping[str, str],
    daemon: str,
    free: int,
    daemon_holds: bool,
) -> bool:
    """True if a client gets so much memory on device 0, of which ``free`` MiB are free.

    ``daemon`` is what ``get_default_device_pinned_mem_limit 0`` answers, empty without a limit.
    """
    limits = [free]
    for part in environment.get(_VARIABLE, "").split(","):
        device, _, value = part.partition("=")
        if device == "0":
            limits.append(_mebibytes(value))
    if daemon and daemon_holds:
        limits.append(_mebibytes(daemon))
    return mebibytes <= min(limits)


def _mebibytes(value: str) -> int:
    return int(value[:-1]) * _UNITS[value[-1]]
