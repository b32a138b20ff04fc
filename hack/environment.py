"""Makes the environment that the Makefile's targets run in: packages, and links to the programs.

``python hack/environment.py '.[dev]' .venv/.dev pyproject.toml ...``, by any Python: what is
installed, the stamp that says so, and the files that the stamp must be newer than. Of two that run
at once the second waits, and finds the stamp.
"""

import fcntl
import subprocess
import sys
from pathlib import Path

PROGRAMS = ("kubectl-mig", "kubectl_complete-mig", "mig-sim")


def main(package: str, stamp: Path, sources: "list[Path]") -> None:
    """Install ``package`` unless the stamp is newer than all sources."""
    venv = stamp.parent
    python = venv / "bin" / "python"
    if not python.exists() and sys.version_info < (3, 11):
        sys.exit(
            f"{sys.executable} is Python {sys.version.split()[0]}, and 3.11 or newer is needed: "
            "name one by PYTHON="
        )
    venv.mkdir(parents=True, exist_ok=True)
    with (venv / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and all(s.stat().st_mtime <= stamp.stat().st_mtime for s in sources):
            return
        # A run that was interrupted may have left a Python without pip.
        if not python.exists() or subprocess.call([str(python), "-c", "import pip"]):
            subprocess.check_call([sys.executable, "-m", "venv", str(venv)])
        quiet = ("--quiet", "--disable-pip-version-check")
        pip = (str(python), "-m", "pip", "install", *quiet, "--constraint", "constraints.txt")
        subprocess.check_call([*pip, "--editable", package])
        # A directory with nothing but the programs for the user's PATH: bin has a python, too.
        plugins = venv / "plugins"
        plugins.mkdir(exist_ok=True)
        for program in PROGRAMS:
            link = plugins / program
            if not link.is_symlink():
                link.symlink_to(Path("..", "bin", program))
        for made in {stamp, venv / ".runtime"}:  # every package of the runtime is one of .dev
            made.touch()


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
    except subprocess.CalledProcessError as error:
        sys.exit(f"{' '.join(error.cmd)} failed; what it says is above")
