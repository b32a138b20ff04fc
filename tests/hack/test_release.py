"""``make release``: what it writes beside wheel and archive can be checked by others' programs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from hack.cluster.driver.chart import REPOSITORY, version
from hack.release import CHART, IMAGES, main, provenance, sums


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


def test_the_provenance_names_every_file_and_what_it_was_made_from(files: list[Path]) -> None:
    pins = REPOSITORY / "constraints.txt"
    made = provenance(files, commit="c0ffee", dirty=True, constraints=pins)
    assert [s["name"] for s in made["subject"]] == ["a.whl", "b.tgz"]
    definition = made["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {"version": version(), "uncommittedChanges": True}
    assert definition["resolvedDependencies"][0]["digest"] == {"gitCommit": "c0ffee"}


def test_a_folder_without_the_wheel_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    ran = CliRunner().invoke(main, ["--folder", str(tmp_path)])
    assert ran.exit_code == 1
    assert f"lacks wheel or archive of {version()}: make krew" in ran.output
    assert not list(tmp_path.iterdir())


def test_every_image_has_its_list_of_packages() -> None:
    text = (REPOSITORY / "deploy/Dockerfile").read_text()
    for image, extra in IMAGES.items():
        assert f"FROM base AS {image}\n" in text
        packages = text.partition(f" AS {image}-dependencies\n")[2].splitlines()[0]
        assert f"'.[{extra}]'" in packages


def test_the_changelog_begins_with_this_version() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    first = next(line for line in text.splitlines() if line.startswith("## "))
    assert first.split()[1] == version() == chart["version"] == chart["appVersion"]
