"""Root file systems of containers with a real dynamic loader, and mounts made in them.

A loader's search list is compiled in. Where this machine's own loader has the other family's list,
the list in a copy of it is overwritten; `ld.so --list-diagnostics` says what a loader searches.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from cdi.spec import Mount
from kubeletplugin.host.libraries import this_architecture

MULTIARCH = this_architecture().multiarch
INTERPRETER = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}[
    this_architecture().name
]
# Debian's build of glibc for 64-bit programs on i386, which has no multiarch directories.
_LIB64_BUILD = Path("/usr/i686-linux-gnu/lib64")
_LISTS = {
    "Debian-like": (f"/lib/{MULTIARCH}/", f"/usr/lib/{MULTIARCH}/", "/lib/", "/usr/lib/"),
    "Red-Hat-like": ("/lib64/", "/usr/lib64/"),
}
_PROBE = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        void *library = dlopen(names[i], RTLD_NOW);
        if (!library) { printf("%s\\n", dlerror()); return 1; }
        int (*version)(void) = (int (*)(void))dlsym(library, "cuDriverGetVersion");
        printf("%s %d\\n", names[i], version ? version() : -1);
    }
    return 0;
}
"""
_ENTER = """
root=$1 list=$2; shift 2
mount -t tmpfs tmpfs "$root"
cp -a "$root.image/." "$root/"
while IFS='|' read -r source target; do
    mkdir -p "$root${target%/*}"
    [ -e "$root$target" ] || : > "$root$target"
    mount --bind "$source" "$root$target"
    mount -o remount,bind,ro,nosuid,nodev "$root$target"
done < "$list"
exec chroot "$root" "$@"
"""
ROOTS = [*_LISTS, *(["Debian's lib64 build"] if _LIB64_BUILD.is_dir() else [])]


@dataclass(frozen=True)
class Image:
    """A container's image in a folder; it holds the loader, the C library and ``/probe``."""

    folder: Path

    @property
    def root(self) -> Path:
        """Where it is entered: beside the folder called ``<root>.image``."""
        return self.folder.with_suffix("")

    def run(self, mounts: Sequence[Mount], host: Path, *command: str) -> str:
        """Run a command in the image with these mounts; what it wrote, whether it failed or not.

        ``host`` is put before each host path that is not below it already.
        """
        sources = [
            m.host_path if Path(m.host_path).is_relative_to(host) else f"{host}{m.host_path}"
            for m in mounts
        ]
        lines = [f"{s}|{m.container_path}\n" for s, m in zip(sources, mounts, strict=True)]
        plan = self.folder.with_suffix(".mounts")
        plan.write_text("".join(lines))
        self.root.mkdir(exist_ok=True)
        script = ["sh", "-euc", _ENTER, "sh", str(self.root), str(plan), *command]
        done = subprocess.run(
            [*private_mounts(), *script], check=False, capture_output=True, text=True
        )
        return done.stdout + done.stderr


def private_mounts() -> list[str]:
    """A command that runs another where its mounts are its own; skips where there is none."""
    for flags in ([], ["--user", "--map-root-user"]):
        command = ["unshare", "--mount", "--propagation", "private", *flags]
        try:
            done = subprocess.run(
                [*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
                check=False,
                capture_output=True,
            )
        except FileNotFoundError:
            break
        if done.returncode == 0:
            return command
    pytest.skip("neither root nor user namespaces: no mounts can be made for a container")


def make_image(folder: Path, kind: str) -> Image:
    """An image of one of ROOTS."""
    library_folder = f"usr/lib/{MULTIARCH}" if kind == "Debian-like" else "usr/lib64"
    (folder / library_folder).mkdir(parents=True)
    (folder / "tmp").mkdir()
    loader, c_library = _system(kind)
    own = folder / INTERPRETER.lstrip("/")
    own.parent.mkdir(exist_ok=True)
    shutil.copy(loader, own)
    if kind in _LISTS:
        own.write_bytes(_with_list(own.read_bytes(), _LISTS[kind]))
    shutil.copy(c_library, folder / library_folder / "libc.so.6")
    compiled(_PROBE, folder / "probe", "-ldl")
    return Image(folder)


def compiled(source: str, target: Path, *flags: str) -> None:
    """Compile C into a program or library; skips where there is no compiler."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) to make a container's program with")
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["cc", "-x", "c", "-", "-o", str(target), *flags]
    subprocess.run(command, check=True, input=source, text=True)


def _system(kind: str) -> tuple[Path, Path]:
    """A loader and the C library that goes with it."""
    if kind not in _LISTS:
        return _LIB64_BUILD / Path(INTERPRETER).name, _LIB64_BUILD / "libc.so.6"
    listed = subprocess.run(
        [INTERPRETER, "--list", os.path.realpath("/bin/sh")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    [c_library] = [line.split()[2] for line in listed.splitlines() if "libc.so.6 =>" in line]
    return Path(INTERPRETER), Path(c_library)


def _with_list(loader: bytes, wanted: Sequence[str]) -> bytes:
    """The loader with another list; the strings keep their lengths, which it knows apart.

    What is left over of a length is slashes, of which many mean one; what is left over of the list
    names directories that no image has.
    """
    for own in _LISTS.values():
        before = b"".join(name.encode() + b"\0" for name in own)
        if before not in loader:
            continue
        if own == wanted:
            return loader
        names = [*wanted, *("/no/" for _ in own)]
        if any(len(n) > len(o) for n, o in zip(names, own, strict=False)):
            break
        after = b"".join(
            name.encode().ljust(len(old), b"/") + b"\0"
            for name, old in zip(names, own, strict=False)
        )
        return loader.replace(before, after)
    return pytest.skip(f"this machine's loader has a list that cannot be made {wanted}")
