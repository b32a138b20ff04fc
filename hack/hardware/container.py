"""Containers without an image registry: a root of copied programs, and what CDI devices add.

A container has a root, mounts, process ids and IPC of its own. Its root holds Python, a shell and
their libraries; of the host it sees what the edits of its CDI devices name, and nothing else. It is
run by runc where that is there, else by ``unshare`` and ``chroot``, which run no hooks and set no
rules for devices.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

PROBE = Path(__file__).parent / "probe.py"
COMMAND_SECONDS = 60.0
_TOOLS = ("sh", "cat", "ln", "mkdir", "mkfifo", "mknod", "mv", "rm", "sleep")
_BESIDE_LIBC = ("libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
"""Of the C library; libcuda needs them, and every image has them."""
_LINKED = re.compile(r"^\s*(?:(\S+) => )?(/\S+) \(0x", re.MULTILINE)
_IMPORTED = """
import runpy, sys, encodings.ascii, encodings.latin_1, encodings.utf_8
runpy.run_path(sys.argv[1])
print("\\n".join(m.__file__ for m in sys.modules.values() if getattr(m, "__file__", None)))
"""
"""Prints the paths of the files of Python's library that the probe needs."""
_STARTED = """
root=$1; shift
mount --bind "$root" "$root"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mount -t proc proc "$root/proc" 2>/dev/null || mount --rbind /proc "$root/proc"
while IFS='|' read -r kind first second third; do
    if [ "$kind" = node ]; then
        mkdir -p "$root${first%/*}"; mknod -m 666 "$root$first" c "$second" "$third"
    else
        if [ -d "$first" ]; then mkdir -p "$root$second"; else
            mkdir -p "$root${second%/*}"; [ -e "$root$second" ] || : > "$root$second"
        fi
        mount --rbind "$first" "$root$second"
        [ "$third" = rw ] || mount -o remount,bind,ro "$root$second"
    fi
done < "$root.plan"
exec chroot "$root" "$@"
"""
_NODES = {"/dev/null": (1, 3), "/dev/zero": (1, 5), "/dev/urandom": (1, 9)}
_NAMESPACES = ("mount", "pid", "ipc", "uts")


@dataclass(frozen=True, slots=True)
class Added:
    """Things that a container gets besides its root.

    ``mounts``: path on the host, path in the container, ``ro`` or ``rw``. ``nodes``: path to major
    and minor number of a character device. ``hooks``: as in CDI specs.
    """

    env: tuple[str, ...] = ()
    nodes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    mounts: tuple[tuple[str, str, str], ...] = ()
    hooks: tuple[Mapping[str, Any], ...] = ()

    def without(self, part: str) -> Added:
        """The same without the mounts whose path has ``part`` in it."""
        return replace(self, mounts=tuple(m for m in self.mounts if part not in m[1]))


def of_devices(edits: Iterable[Mapping[str, Any]]) -> Added:
    """The additions of CDI specs' containerEdits; the driver's device nodes have numbers."""
    listed = list(edits)

    def all_of(kind: str) -> Iterator[Any]:
        return (each for edit in listed for each in edit.get(kind, ()))

    return Added(
        env=tuple(all_of("env")),
        nodes={n["path"]: (n["major"], n.get("minor", 0)) for n in all_of("deviceNodes")},
        mounts=tuple(
            (m["hostPath"], m["containerPath"], "rw" if "rw" in m.get("options", ()) else "ro")
            for m in all_of("mounts")
        ),
        hooks=tuple(all_of("hooks")),
    )


class Containers:
    """Runs containers below ``folder``; ``way`` is ``runc``, or ``unshare`` and why."""

    def __init__(self, folder: Path, host_root: Path) -> None:
        self._folder = folder
        self._host_root = host_root
        self._image = folder / "image"
        self._count = 0
        _make_image(self._image)
        self._runc = shutil.which("runc")
        self.way = "runc" if self._runc else "unshare, as no runc is on the PATH"
        if self._runc:
            tried = self.run(["sh", "-c", "exit 0"], Added())
            if tried["code"]:
                self._runc, self.way = None, f"unshare, as runc failed: {tried['output']}"

    def run(self, command: Sequence[str], added: Added) -> dict[str, Any]:
        """The code of a command that is run to its end, and its output with standard error.

        A command that takes longer than ``COMMAND_SECONDS`` is ended; its code is then 124.
        """
        process = self.start(command, added)
        try:
            output, _ = process.communicate(timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            return {"code": 124, "output": f"{output}\nended after {COMMAND_SECONDS:g} s"}
        return {"code": process.returncode, "output": output.strip()}

    def start(
        self, command: Sequence[str], added: Added, *, privileged: bool = False
    ) -> subprocess.Popen[str]:
        """Start a command, whose input is ours to end.

        One that is ``privileged`` has the host's processes and may do all.
        """
        self._count += 1
        root = self._folder / f"c{self._count}"
        shutil.copytree(self._image, root, symlinks=True, copy_function=os.link)
        nodes = {**_NODES, **added.nodes}
        mounts = ((self._found(host), own, mode) for host, own, mode in added.mounts)
        added = replace(added, mounts=tuple(mounts))
        if self._runc and not privileged:
            bundle = self._folder / f"{root.name}.bundle"
            bundle.mkdir()
            (bundle / "config.json").write_text(json.dumps(_config(root, command, added, nodes)))
            whole = [self._runc, "--root", str(self._folder / "runc"), "run"]
            return _start([*whole, "--bundle", str(bundle), f"mig-{os.getpid()}-{self._count}"])
        plan = [f"node|{path}|{a}|{b}\n" for path, (a, b) in nodes.items()]
        plan += [f"mount|{host}|{own}|{mode}\n" for host, own, mode in added.mounts]
        root.with_suffix(".plan").write_text("".join(plan))
        spaces = _NAMESPACES[:1] if privileged else _NAMESPACES
        flags = [f"--{name}" for name in spaces] + ["--fork"] * (not privileged)
        whole = ["unshare", *flags, "--propagation", "private", "sh", "-euc", _STARTED, "sh"]
        return _start([*whole, str(root), *command], dict(e.split("=", 1) for e in added.env))

    def _found(self, path: str) -> str:
        """A path of the host; only a simulated one has a root of its own."""
        below = self._host_root / path.lstrip("/")
        return str(below) if below.exists() else path


def _start(command: list[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": os.environ.get("PATH", ""), **(env or {})},
    )


def _config(
    root: Path, command: Sequence[str], added: Added, nodes: Mapping[str, tuple[int, int]]
) -> dict[str, Any]:
    """The configuration of the OCI runtime specification."""
    hooks: dict[str, list[Any]] = {}
    for hook in added.hooks:
        hooks.setdefault(hook["hookName"], []).append(
            {key: hook[key] for key in ("path", "args", "env", "timeout") if key in hook}
        )
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
    ]
    mounts += [
        {"destination": own, "source": host, "options": ["rbind", "nosuid", mode]}
        for host, own, mode in added.mounts
    ]
    numbers = [{"type": "c", "major": a, "minor": b} for a, b in nodes.values()]
    path = f"PATH={Path(sys.executable).resolve().parent}:/usr/bin:/bin"
    env, root_user = [path, *added.env], {"uid": 0, "gid": 0}
    return {
        "ociVersion": "1.0.2",
        "process": {"user": root_user, "args": list(command), "env": env, "cwd": "/"},
        "root": {"path": str(root)},
        "hooks": hooks,
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": name} for name in _NAMESPACES],
            "devices": [
                {"path": path, "fileMode": 0o666, **root_user, **number}
                for path, number in zip(nodes, numbers, strict=True)
            ],
            "resources": {
                "devices": [
                    {"allow": False, "access": "rwm"},
                    *({"allow": True, "access": "rwm", **number} for number in numbers),
                ]
            },
        },
    }


def _make_image(image: Path) -> None:
    """Copy Python, a shell and a few tools with all that the loader needs for them."""
    for name in ("dev", "proc", "tmp", "etc", "usr/bin"):
        (image / name).mkdir(parents=True)
    (image / "bin").symlink_to("usr/bin")
    python = Path(sys.executable).resolve()
    imported = subprocess.run(
        [python, "-I", "-c", _IMPORTED, PROBE], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    programs = [python, *(Path(found) for name in _TOOLS if (found := shutil.which(name)))]
    for path in (*map(Path, imported), *programs):
        _copy(path, _below(image, path))
    extensions = [each for each in imported if each.endswith(".so")]
    listed = "".join(
        subprocess.run(["ldd", each], check=False, capture_output=True, text=True).stdout
        for each in (*map(str, programs), *extensions)
    )
    linked = dict.fromkeys(_LINKED.findall(listed))
    home = next((Path(path).parent for name, path in linked if name.startswith("libc.so")), None)
    for name, path in linked:
        # In one directory, which every loader searches: the image has no ld.so.cache.
        own = Path(path) if home is None or not name else home / name
        _copy(Path(path), _below(image, own))
    for path in (home / name for name in _BESIDE_LIBC if home):
        if path.exists():
            _copy(path, _below(image, path))
    shutil.copy(PROBE, image / PROBE.name)


def _copy(path: Path, target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path.resolve(), target)


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")
