"""kubectl's plugin as krew takes it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from hack import krew


def test_the_manifest_has_what_krew_asks_for() -> None:
    found = krew.manifest(
        Path("dist/x.tar.gz"), uri="https://host/v1", digest="0" * 64, architecture="arm64"
    )
    assert found["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert found["metadata"] == {"name": "mig"}
    spec = found["spec"]
    assert isinstance(spec, dict)
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert len(spec["shortDescription"]) <= 50
    (platform,) = spec["platforms"]
    assert platform["uri"] == "https://host/v1/x.tar.gz"
    assert platform["bin"] == "kubectl-mig"
    assert platform["selector"] == {"matchLabels": {"os": "linux", "arch": "arm64"}}


def test_the_launcher_names_the_python_that_is_missing_and_works_through_a_link(
    tmp_path: Path,
) -> None:
    folder, links = tmp_path / "store", tmp_path / "bin"
    (folder / "lib/cli").mkdir(parents=True)
    links.mkdir()
    said = "import sys\ndef main(): print(sys.argv[1:]); return 7\n"
    (folder / "lib/cli/program.py").write_text(said)
    elsewhere = tmp_path / "cwd"  # of the user, with a module of the same name
    (elsewhere / "cli").mkdir(parents=True)
    (elsewhere / "cli/program.py").write_text("def main(): return 9\n")
    launcher = folder / "kubectl-mig"
    launcher.write_text(krew.LAUNCHER.replace("{entry}", "main"))
    launcher.chmod(0o755)
    (links / "kubectl-mig").symlink_to(launcher)

    def run(path: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [links / "kubectl-mig", "map", "a b"],
            cwd=elsewhere,
            env={"PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    done = run(f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin")
    assert (done.returncode, done.stdout) == (7, "['map', 'a b']\n")
    for program in ("dirname", "readlink"):
        (links / program).symlink_to(Path("/usr/bin") / program)
    done = run(str(links))
    assert done.returncode == 2
    assert f"python3.{sys.version_info.minor} is not installed" in done.stderr
