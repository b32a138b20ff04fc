"""Directory of CDI specs, which container runtimes read: a file for each claim, one for all."""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import yaml

from cdi.files import TEMPORARY_SUFFIX, sync_directory, write_whole
from cdi.spec import (
    CLAIM_CLASS,
    DRIVER_CLASS,
    CdiError,
    Spec,
    claim_kind,
    driver_kind,
    encode,
    validate,
    vendor,
)

_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,126}[A-Za-z0-9])?")
_SUFFIX = ".yaml"


class SpecStore:
    """The specs of one driver below ``root`` (``/var/run/cdi``). Touches no other files.

    ``root`` is in memory on most nodes: after a reboot specs are written again, and old specs, on
    nodes where they have survived, are swept. A spec's file is whole or absent.

    Methods raise CdiError if the file system refuses a call, if a spec breaks a rule, and if a
    claim UID cannot be a file name. Calls for different claims may run at the same time, and one
    call for the common spec at the same time as these.
    """

    def __init__(self, root: Path, driver: str) -> None:
        self._root = root
        self._kind = claim_kind(driver)
        self._common_kind = driver_kind(driver)
        self._prefix = f"{vendor(driver)}-{CLAIM_CLASS}_"
        self._common: tuple[Spec, bytes] | None = None
        self.common_path = root / f"{vendor(driver)}-{DRIVER_CLASS}{_SUFFIX}"
        """File of the common spec, used by all claims: ``<root>/k8s.<driver>-driver.yaml``."""

    def path(self, claim_uid: str) -> Path:
        """The file of a claim: ``<root>/k8s.<driver>-claim_<uid>.yaml``."""
        if not _UID.fullmatch(claim_uid):
            raise CdiError(f"claim UID {claim_uid[:80]!r} is no UID; refused as a file name")
        return self._root / f"{self._prefix}{claim_uid}{_SUFFIX}"

    def check(self) -> None:
        """Make the directory if needed; raises CdiError if nothing can be written to it."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if not os.access(self._root, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            text = error.strerror or error
            raise CdiError(f"cannot write CDI specs to {self._root}: {text}") from error

    def write(self, claim_uid: str, spec: Spec) -> None:
        """Validate ``spec`` and write it to the claim's file, unless the file has it already."""
        path = self.path(claim_uid)
        _check_kind(spec, self._kind)
        self._put(path, render(spec))

    def has_common(self, spec: Spec) -> bool:
        """True if the file of the common spec has this ``spec``."""
        try:
            return _read(self.common_path) == self._rendered(spec)
        except OSError:
            return False

    def write_common(self, spec: Spec) -> None:
        """Validate the common spec and write it to its file, unless the file has it already."""
        self._put(self.common_path, self._rendered(spec))

    def remove_common(self) -> None:
        """Remove the file of the common spec; it is no error if there is none."""
        _remove(self.common_path)

    def _rendered(self, spec: Spec) -> bytes:
        """Content of the common spec's file; kept for the next call with the same object."""
        kept = self._common
        if kept is None or kept[0] is not spec:
            _check_kind(spec, self._common_kind)
            kept = self._common = (spec, render(spec))
        return kept[1]

    def _put(self, path: Path, data: bytes) -> None:
        try:
            if _read(path) == data:
                return
            try:
                write_whole(path, data, synced=True)
            except FileNotFoundError:
                self._root.mkdir(parents=True, exist_ok=True)
                write_whole(path, data, synced=True)
        except OSError as error:
            raise CdiError(f"cannot write CDI spec {path}: {error.strerror or error}") from error

    def remove(self, claim_uid: str) -> None:
        """Remove a claim's spec; it is no error if there is none."""
        _remove(self.path(claim_uid))

    def claims(self) -> frozenset[str]:
        """UIDs of the claims that have a file."""
        try:
            files = [p.name for p in self._root.glob(f"{self._prefix}*{_SUFFIX}")]
        except OSError as error:
            raise CdiError(f"cannot list {self._root}: {error.strerror or error}") from error
        return frozenset(n.removeprefix(self._prefix).removesuffix(_SUFFIX) for n in files)

    def sweep(self, keep: Collection[str]) -> list[Path]:
        """Remove temporary files, and specs of claims whose UID is not in ``keep``.

        Returns the removed paths. Only files with this driver's vendor and class in their name are
        removed.
        """
        removed: list[Path] = []
        try:
            for path in sorted(self._root.glob(f"{self.common_path.name}.*{TEMPORARY_SUFFIX}")):
                path.unlink(missing_ok=True)
                removed.append(path)
            for path in sorted(self._root.glob(f"{self._prefix}*")):
                uid = path.name.removeprefix(self._prefix).removesuffix(_SUFFIX)
                temporary = path.name.endswith(TEMPORARY_SUFFIX)
                if temporary or (path.suffix == _SUFFIX and uid not in keep):
                    path.unlink(missing_ok=True)
                    removed.append(path)
            if removed:
                sync_directory(self._root)
        except OSError as error:
            raise CdiError(f"cannot sweep {self._root}: {error.strerror or error}") from error
        return removed


def _events(value: Any) -> Iterator[yaml.Event]:
    """Events of PyYAML for a value, every text quoted: for runtimes a bare ``1e3`` is a number.

    They go to the emitter as they are: PyYAML's way to them takes two thirds of the time.
    """
    if isinstance(value, dict):
        yield yaml.MappingStartEvent(None, None, implicit=True, flow_style=False)
        for name, content in value.items():
            yield from _events(name)
            yield from _events(content)
        yield yaml.MappingEndEvent()
    elif isinstance(value, list):
        yield yaml.SequenceStartEvent(None, None, implicit=True, flow_style=False)
        for content in value:
            yield from _events(content)
        yield yaml.SequenceEndEvent()
    else:
        style = '"' if isinstance(value, str) else None
        yield yaml.ScalarEvent(None, None, (True, True), str(value), style=style)


def render(spec: Spec) -> bytes:
    """Content of a spec's file, in YAML.

    Raises:
        CdiError: the spec breaks a rule of the specification.
    """
    validate(spec)
    events = (
        yaml.StreamStartEvent(),
        yaml.DocumentStartEvent(explicit=False),
        *_events(encode(spec)),
        yaml.DocumentEndEvent(explicit=False),
        yaml.StreamEndEvent(),
    )
    text: str = yaml.emit(events, Dumper=yaml.CDumper, width=-1)
    return text.encode()


def _check_kind(spec: Spec, kind: str) -> None:
    if spec.kind != kind:
        raise CdiError(f"CDI spec: kind {spec.kind!r} is not this driver's {kind!r}")


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise CdiError(f"cannot remove CDI spec {path}: {error.strerror or error}") from error


def _read(path: Path) -> bytes | None:
    """Content of a file; None if there is no file, or a link, as links are not followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
    with io.FileIO(descriptor) as file:
        return file.readall()
