"""``make release``: what it writes beside wheel and archive can be checked by others' programs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml
from click.testing import CliRunner

from hack import krew
from hack.cluster.chart import CHART, NAMESPACE, REPOSITORY, render, version
from hack.release import __main__ as release
from hack.release import manifests
from hack.release.__main__ import main, sums
from tests.hack.registry import running


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "b.tgz", tmp_path / "a.whl"]
    for each in made:
        each.write_text(each.name)
    return made


def test_sha256sum_accepts_the_sums_and_notices_a_change(files: list[Path]) -> None:
    folder = files[0].parent
    (folder / "SUMS").write_text(sums(files))
    check = ["sha256sum", "--check", "--quiet", "SUMS"]
    assert subprocess.run(check, cwd=folder, check=False).returncode == 0
    files[0].write_text("another")
    assert subprocess.run(check, cwd=folder, check=False).returncode == 1


@pytest.mark.parametrize("base", ["python:3.11", "python:3.11@sha256:12", "@sha256:" + "1" * 64])
def test_a_base_that_may_be_another_image_tomorrow_is_refused(tmp_path: Path, base: str) -> None:
    ran = CliRunner().invoke(main, ["--folder", str(tmp_path), "--base", base])
    assert ran.exit_code == 2
    assert f"'{base}' names no digest" in ran.output
    assert not list(tmp_path.iterdir())


def test_what_a_release_consists_of_stands_in_its_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the packages of the images, which come from an index."""
    monkeypatch.setattr(release, "IMAGES", {})
    monkeypatch.setattr(release, "tools", lambda folder: folder)
    given = {f"a-{version()}-py3-none-any.whl", "kubectl-mig-a.tar.gz", "mig.yaml"}
    for name in given:
        (tmp_path / name).write_text(name)
    ran = CliRunner().invoke(main, ["--folder", str(tmp_path), "--registry", "host/path"])
    assert ran.exit_code == 0, ran.output
    listed = {line.split()[1] for line in (tmp_path / "SHA256SUMS").read_text().splitlines()}
    made = {f"{CHART.name}-{version()}.tgz", "install.yaml"}
    assert listed == given | made
    assert "host/path/dra-driver-nvidia-mig/controller" in (tmp_path / "install.yaml").read_text()


def test_the_changelog_begins_with_this_version() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    first = next(line for line in text.splitlines() if line.startswith("## "))
    assert first.split()[1] == version() == described["version"] == described["appVersion"]


def test_the_chart_comes_back_from_the_registry_that_it_was_pushed_to(tmp_path: Path) -> None:
    archive = release.package_chart(tmp_path)
    with running() as registry:
        target = f"oci://127.0.0.1:{registry.server_port}/charts"
        logins = tmp_path / "logins"
        pushed = release.push_chart(archive, target, credentials=logins, plain=True)
        (tmp_path / "back").mkdir()
        name, _, digest = pushed.partition("@")
        helm_python.pull(name, destination=tmp_path / "back", version=version(), plain_http=True)
    assert name == f"{target}/{CHART.name}"
    (back,) = (tmp_path / "back").iterdir()
    assert back.read_bytes() == archive.read_bytes()
    _, manifest = registry.stored[f"/v2/charts/{CHART.name}/manifests/{digest}"]
    assert [each["mediaType"] for each in json.loads(manifest)["layers"]] == [
        "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
    ]


PILOT = {"kubeletPlugin": {"nodeSelector": {"pilot": "yes"}}, "evictFailed": {"enabled": False}}


@pytest.mark.parametrize("values", [{}, PILOT], ids=["default", "others"])
def test_the_file_for_kubectl_has_what_the_chart_makes_and_its_namespace(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    written = manifests.write(tmp_path, registry="host/path", values=values)
    namespace, *objects = yaml.safe_load_all(written.read_text())
    assert (namespace["kind"], namespace["metadata"]["name"]) == ("Namespace", NAMESPACE)
    assert objects == render({**values, "image": {"registry": "host/path"}})


def test_the_file_for_kubectl_is_not_written_with_values_that_the_chart_refuses(
    tmp_path: Path,
) -> None:
    given = tmp_path / "values.yaml"
    given.write_text("kubeletPlugin: {enableMIG: true}")
    ran = CliRunner().invoke(manifests.main, ["--folder", str(tmp_path), "--values", str(given)])
    assert ran.exit_code == 1
    assert "enableMIG" in ran.output
    assert not (tmp_path / "install.yaml").exists()


# -- kubectl's plugin as krew takes it


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
