"""The record of a slice that a check is about to make, and its removal by that record.

It is on disk before the slice is made, so that a check that was killed leaves nothing that nobody
knows of: ``check --clean-up`` removes what it names.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from cdi.files import write_durably
from dra.gpu.geometry import Geometry, Placement, Profile
from kubeletplugin.check.errors import CheckError
from kubeletplugin.nvml.changes import destroy_compute_instances, destroy_gpu_instance
from kubeletplugin.nvml.errors import InUseError, NvmlError
from kubeletplugin.nvml.instances import GpuInstance, list_gpu_instances
from kubeletplugin.nvml.session.session import Session

CLEAN_UP = "python -m kubeletplugin check --clean-up"
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.25


class Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A GPU instance that a check may have made; without MIG mode or in another boot it is gone."""

    gpu: str
    boot_id: str
    profile_id: int
    profile: str
    start: int
    size: int

    @property
    def placement(self) -> Placement:
        """Placement of the slice."""
        return Placement(self.start, self.size)


class RecordFile:
    """The one record of a node, in the plugin's state directory."""

    def __init__(self, state: Path) -> None:
        self.path = state / "check.json"

    def read(self) -> Record | None:
        """Read the record of a slice that a check has left; None if there is none.

        Raises:
            CheckError: the file cannot be read.
        """
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise CheckError(
                f"{self.path} cannot be read: {error}; compare nvidia-smi mig -lgi with what "
                "should be there, then remove the file"
            ) from error

    def write(self, record: Record) -> None:
        """Put it on disk.

        Raises:
            CheckError: that failed.
        """
        try:
            write_durably(self.path, msgspec.json.encode(record), mode=0o600)
        except OSError as error:
            raise CheckError(f"cannot write {self.path}: {error.strerror or error}") from error

    def remove(self) -> None:
        """Nothing is left."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def remove(
    session: Session,
    record: Record,
    *,
    pause: Callable[[float], None] = time.sleep,
) -> int | None:
    """Remove the GPU instance of a record, with what is in it; None if it is not there.

    Returns how often the driver said IN_USE before it let the GPU instance go.

    Raises:
        NvmlError: it is still there.
    """
    found = find(session, record)
    if found is None:
        return None
    _until_free(lambda: destroy_compute_instances(session, record.gpu, found.id), pause)
    return _until_free(lambda: destroy_gpu_instance(session, record.gpu, found.id), pause)


def find(session: Session, record: Record) -> GpuInstance | None:
    """The GPU instance at a record's placement, if it is of its profile.

    Raises:
        NvmlError: the GPU cannot be asked.
    """
    shape = Profile(record.profile_id, record.profile, 0, 0, 0, (record.placement,))
    listed = list_gpu_instances(session, record.gpu, Geometry((shape,)))
    return next((gi for gi in listed if gi.placement == record.placement), None)


def _until_free(work: Callable[[], None], pause: Callable[[float], None]) -> int:
    for refused in range(_ATTEMPTS):
        try:
            work()
        except InUseError:
            pause(_PAUSE_SECONDS)
            continue
        return refused
    work()
    return _ATTEMPTS


def advice(record: Record, error: NvmlError) -> str:
    """The remedy for a slice that could not be removed."""
    return (
        f"the slice {record.profile} at {record.placement} of GPU {record.gpu} may be left: "
        f"{error}; run {CLEAN_UP} once that is over"
    )
