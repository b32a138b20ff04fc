"""kubectl's plugin as krew takes it: an archive and the manifest that names it.

The plugin is Python with compiled parts, so the archive is of this machine's platform and holds
the packages for this Python; it starts with any `python3.<minor>` of that version on the PATH and
says so where there is none.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import click
import yaml

from dra.common.program import HOMEPAGE
from hack.cluster.chart import REPOSITORY, version

_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

LAUNCHER = f"""\
#!/bin/sh
# krew links to this file: the packages are where the link leads.
here=$(dirname "$(readlink -f "$0")")
if ! command -v {_PYTHON} >/dev/null; then
    echo "kubectl mig: {_PYTHON} is not installed, and this build needs it" >&2
    exit 2
fi
export PYTHONPATH="$here/lib"
# -P: nothing is imported from wherever somebody calls it.
exec {_PYTHON} -P -c 'from cli.program import {{entry}}; raise SystemExit({{entry}}())' "$@"
"""


def manifest(archive: Path, *, uri: str, digest: str, architecture: str) -> dict[str, object]:
    """The Plugin object of krew.googlecontainertools.github.com/v1alpha2."""
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "mig"},
        "spec": {
            "version": f"v{version()}",
            "homepage": HOMEPAGE,
            "shortDescription": "Show NVIDIA MIG slices and why claims wait",
            "description": (
                "Draws what sits where on every GPU that dra-driver-nvidia-mig manages, explains "
                "why a pod or claim waits, checks the installation and manifests, and drains GPUs."
            ),
            "caveats": f"It needs {_PYTHON} on the PATH. krew does not install completions: link "
            "kubectl_complete-mig from the plugin's directory to a directory of the PATH.",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": "linux", "arch": architecture}},
                    "uri": f"{uri}/{archive.name}",
                    "sha256": digest,
                    "bin": "kubectl-mig",
                }
            ],
        },
    }


def pack(wheel: Path, target: Path) -> None:
    """Write the archive with everything that the plugin of a wheel needs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"]
        command += ["--disable-pip-version-check", "--only-binary", ":all:"]
        command += ["--constraint", str(REPOSITORY / "constraints.txt")]
        command += ["--target", str(folder / "lib"), f"{wheel}[cli]"]
        subprocess.run(command, check=True)
        # As in deploy/Dockerfile.
        shutil.rmtree(folder / "lib/cel_expr_python/ext")
        for program, entry in (
            ("kubectl-mig", "main"),
            ("kubectl_complete-mig", "complete"),
        ):
            (folder / program).write_text(LAUNCHER.replace("{entry}", entry))
            (folder / program).chmod(0o755)
        (folder / "LICENSE").write_bytes((REPOSITORY / "LICENSE").read_bytes())
        with tarfile.open(target, "w:gz") as archive:
            for path in sorted(folder.iterdir()):
                archive.add(path, arcname=path.name)


@click.command()
@click.option(
    "--wheel-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    required=True,
    help="Where the wheel is, and where archive and manifest go.",
)
@click.option("--uri", default=f"{HOMEPAGE}/releases/download/v{version()}", show_default=True)
def main(*, wheel_dir: Path, uri: str) -> None:
    """Write the archive and mig.yaml; try them with `kubectl krew install --manifest --archive`."""
    wheels = sorted(wheel_dir.glob(f"dra_driver_nvidia_mig-{version()}-*.whl"))
    if not wheels:
        raise click.ClickException(f"{wheel_dir} has no wheel of {version()}; run make wheel first")
    machine = subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True)  # noqa: S607 - of the system
    architecture = _ARCHITECTURES.get(machine.stdout.strip(), machine.stdout.strip())
    archive = wheel_dir / f"kubectl-mig-linux-{architecture}.tar.gz"
    pack(wheels[-1], archive)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    found = manifest(archive, uri=uri, digest=digest, architecture=architecture)
    path = wheel_dir / "mig.yaml"
    path.write_text(yaml.safe_dump(found, sort_keys=False))
    click.echo(f"{archive} ({archive.stat().st_size >> 20} MiB), {path}")
    click.echo(f"kubectl krew install --manifest={path} --archive={archive}")


if __name__ == "__main__":
    main()
