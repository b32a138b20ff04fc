"""Root directories of the host's files, as this program and as container runtimes see them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

_CHUNK = 1 << 16
_DRIVER_CONTAINER = Path("/run/nvidia/driver")
"""Directory where the GPU operator mounts the root of its driver container."""
_MOST_LINKS = 40
"""Limit of Linux on the links followed in one path."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Configurable root directories, below which all files of the host are found.

    ``host``: path at which this program sees the host's ``/``, such as ``/host`` in a container
    that mounts it there.
    ``driver``: root of the NVIDIA driver's files as the host sees it: ``/``, or
    ``/run/nvidia/driver`` where the driver comes in a container.
    ``driver_container``: root of a driver container that may come and go; counts instead of
    ``driver`` while the container is there. None: no such container is expected.
    ``cdi``, ``kubelet``: directory of CDI specs and kubelet's directory; they have the same path
    inside and outside of this program's container.
    ``state``: this program's state directory.
    """

    host: Path
    driver: Path
    cdi: Path
    kubelet: Path
    state: Path
    driver_container: Path | None = None

    @classmethod
    def of(  # noqa: PLR0913 - the command line's options
        cls,
        *,
        host_root: Path,
        driver_root: Path,
        cdi_root: Path,
        kubelet_root: Path,
        state_dir: Path | None,
        driver_name: str,
    ) -> Roots:
        """The roots that the command line names; the driver's may be ``auto``."""
        auto = driver_root == Path("auto")
        return cls(
            host=host_root.absolute(),
            driver=Path("/") if auto else driver_root.absolute(),
            driver_container=_DRIVER_CONTAINER if auto else None,
            cdi=cdi_root.absolute(),
            kubelet=kubelet_root.absolute(),
            state=(state_dir or kubelet_root / "plugins" / driver_name).absolute(),
        )

    def on_host(self, path: str) -> Path:
        """Path at which this program finds the host's absolute ``path``."""
        return self.host / path.lstrip("/")

    def read(self, path: str) -> str:
        """Content of a small file of the host, such as one of /proc.

        Takes half of the system calls of ``Path.read_text``, as some files are read for each claim.

        Raises:
            OSError: the file cannot be read.
        """
        descriptor = os.open(f"{self.host}/{path}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = b"".join(iter(lambda: os.read(descriptor, _CHUNK), b""))
        finally:
            os.close(descriptor)
        return content.decode()

    def now(self) -> RootsNow:
        """These roots for one short piece of work, during which files are read only once."""
        return RootsNow(
            self.host, self.driver, self.cdi, self.kubelet, self.state, self.driver_container
        )

    @property
    def driver_root(self) -> Path:
        """The root of the driver's files at this moment, as the host sees it."""
        container = self.driver_container
        if container is not None and (_seen(self, container) / "usr").is_dir():
            return container
        return self.driver

    @property
    def driver_seen(self) -> Path:
        """Path at which this program finds the driver's files.

        A root that is already below ``host`` is taken as it is.
        """
        return _seen(self, self.driver_root)

    @property
    def registry(self) -> Path:
        """Kubelet's directory of registration sockets."""
        return self.kubelet / "plugins_registry"

    def plugin(self, driver_name: str) -> Path:
        """The directory of this driver's service socket."""
        return self.kubelet / "plugins" / driver_name

    def boot_id(self) -> str:
        """The kernel's boot id; empty where it cannot be read."""
        try:
            return self.on_host("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""


@lru_cache(maxsize=16)
def _seen(roots: Roots, root: Path) -> Path:
    """Path at which this program sees a root; cached, as paths are slow and each claim asks."""
    return root if root.is_relative_to(roots.host) else roots.on_host(str(root))


@dataclass(frozen=True, slots=True)
class RootsNow(Roots):
    """Roots that read each file only once, and look for the driver's root only once."""

    _texts: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    _driver: list[Path] = field(default_factory=list, compare=False, repr=False)

    def read(self, path: str) -> str:
        """Content of a file of the host, read at the first call."""
        if path not in self._texts:
            self._texts[path] = Roots.read(self, path)
        return self._texts[path]

    @property
    def driver_root(self) -> Path:
        """The root of the driver's files, as the host sees it, looked for at the first call."""
        if not self._driver:
            self._driver.append(Roots.driver_root.__get__(self))
        return self._driver[0]


def located(roots: Roots, path: str) -> tuple[Path, str] | None:
    """Target of ``path`` below the driver's root: as this program and as the host sees it.

    Links are followed as by a program whose ``/`` is the driver's root, as in a driver container;
    where that leads nowhere, as by the host's programs: a root such as /opt/nvidia is a directory
    like others, whose links may lead out of it. None if there is nothing.
    """
    host, root = str(roots.host), roots.driver_root
    is_seen_alike = root.is_relative_to(roots.host)
    outer = str(root).removeprefix(host) if is_seen_alike else str(root)
    for start, below in ((str(roots.driver_seen), path), (host, f"{outer}/{path}")):
        found = followed(start, below)
        if os.path.exists(found):  # noqa: PTH110 - there is no Path
            return Path(
                found
            ), found if is_seen_alike else f"/{found.removeprefix(host).lstrip('/')}"
    return None


def inside(root: Path, path: str) -> Path:
    """Path to which ``path`` below ``root`` leads once all links are followed. Never raises.

    The file need not exist. An absolute link, such as ``/usr -> /somewhere/usr``, is followed as by
    a program whose ``/`` is ``root``, so that it does not lead out of ``root``.
    """
    return Path(followed(str(root), path))


def followed(root: str, path: str) -> str:
    """The path of :func:`inside` as text, which is quicker, for paths needed for each claim."""
    at = root
    left = _names(path)
    links = 0
    while left:
        part = left.pop()
        if part == "..":
            at = at if at == root else os.path.dirname(at)  # noqa: PTH120
            continue
        step = f"{at.rstrip('/')}/{part}"
        try:
            target = os.readlink(step)  # noqa: PTH115
        except OSError:
            at = step
            continue
        links += 1
        if links > _MOST_LINKS:
            return step
        if target.startswith("/"):
            at = root
        left += _names(target)
    return at


def _names(path: str) -> list[str]:
    """The names in a path, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in {"", "."}]
