"""Remedies that several messages name.

This program has every GPU open that it serves, and nobody can reset a GPU that is open: what needs
a reset begins with a drain, upon which this program releases the GPU.
"""

from __future__ import annotations

SEE_PROCESSES = "run the plugin in the host's pid namespace (hostPID: true)"
RELEASE_DCGM = (
    "DCGM releases it where the node is labelled nvidia.com/gpu.deploy.dcgm=false and "
    "nvidia.com/gpu.deploy.dcgm-exporter=false, until that is done"
)
"""Remedy against monitors of the GPU operator, which hold GPUs and instances."""
_NODE, _GPU = "<node>", "<gpu>"


def reset(uuid: str, *, node: str = _NODE, gpu: str = _GPU) -> str:
    """Remedy: reset of a GPU, named by UUID and, if known, as MigNode and kubectl name it."""
    return (
        f"reset the GPU (kubectl mig drain {node} {gpu} --wait, nvidia-smi -r -i {uuid}, "
        f"kubectl mig resume {node} {gpu}) or reboot the node"
    )


def enable_mig(uuid: str, *, node: str = _NODE, gpu: str = _GPU) -> str:
    """Remedy: turning on a GPU's MIG mode, which no client may have open meanwhile."""
    return (
        f"turn it on with: nvidia-smi -i {uuid} -mig 1, between kubectl mig drain {node} {gpu} "
        f"--wait and kubectl mig resume {node} {gpu}"
    )


def disable_mig(uuid: str, *, node: str, gpu: str, switches: bool) -> str:
    """Remedy: turning off a GPU's MIG mode; ``switches``: that needs no reset."""
    other = ", or set migMode: switch in the class of the node" if switches else ""
    return (
        f"turn it off with: nvidia-smi -i {uuid} -mig 0, between kubectl mig drain {node} {gpu} "
        f"--wait and kubectl mig resume {node} {gpu}{other}"
    )


def at_hand(text: str, *, node: str, gpu: str) -> str:
    """A text with remedies that were said where the node's or the GPU's name was not known."""
    return text.replace(_NODE, node).replace(_GPU, gpu)
