"""``kubectl mig bundle``: what a person needs who is to find out what is wrong, in one file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from cli.bundling.archive import write
from cli.bundling.contents import Contents, File
from cli.commands import doctor
from cli.commands import map as placement_map
from cli.shell.exits import CliError, Exit
from cli.shell.session import Session
from cli.shell.versions import version

_README = """\
State of dra-driver-nvidia-mig, {time}, kubectl mig {version}.

Left out: labels and annotations of tenants' objects, values of environment variables, commands and
images of tenants' containers, parameters of other drivers, addresses of nodes and pods. Names of
namespaces, pods, claims and nodes are in it, and logs of the driver as they were written, without
what looks like a credential: look through it before you hand it on.

Could not be read:
{missing}
"""


def run(session: Session, arguments: argparse.Namespace) -> int:
    """Write the bundle; 0 also where some of it may not be read, which is said."""
    now = session.now()
    folder = f"mig-bundle-{now:%Y%m%d-%H%M%S}"
    path = Path(arguments.file or f"{folder}.tar.gz")
    if path.exists():
        raise CliError(Exit.USAGE, f"{path} is there already: name another file by --file")
    all_nodes = argparse.Namespace(node=[], watch=False)
    contents = Contents(
        session,
        {
            "doctor.json": lambda each: doctor.run(each, arguments),
            "map.txt": lambda each: placement_map.run(each, all_nodes),
        },
    )

    def files() -> Iterator[File]:
        yield from contents.files()
        missing = "\n".join(contents.missing) or "nothing"
        text = _README.format(
            time=f"{now:%Y-%m-%d %H:%M:%S} UTC", version=version(), missing=missing
        )
        yield File("README.txt", text.encode())

    try:
        write(path, files(), folder=folder, seconds=int(now.timestamp()))
    except OSError as error:
        raise CliError(Exit.USAGE, f"{path} cannot be written: {error}; see --file") from error
    if session.out.is_json:
        session.out.json("Bundle", {"file": str(path), "missing": contents.missing})
        return Exit.OK
    session.out.line(f"{path}: {path.stat().st_size / 2**10:.0f} KiB")
    for each in contents.missing:
        session.out.paragraph("  ", "not in it: ", each)
    return Exit.OK
