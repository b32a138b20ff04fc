"""Errors that keep a pod from starting or ending on the simulated node.

KubeletError
 +-- RegistrationError   a plugin's answer to GetInfo is not acceptable
 +-- ClaimError          a claim cannot be prepared or unprepared now
 +-- ContainerError      a runtime would refuse to create the container
"""


class KubeletError(Exception):
    """Something that kubelet reports and tries again."""


class RegistrationError(KubeletError):
    """A plugin's answer to GetInfo is not acceptable."""


class ClaimError(KubeletError):
    """A claim cannot be prepared or unprepared now."""


class ContainerError(KubeletError):
    """A runtime would refuse to create the container."""
