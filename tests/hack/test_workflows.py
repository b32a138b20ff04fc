"""GitHub's workflows start what is there; `make lint` holds them to their schema."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster.chart import REPOSITORY, version

WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def scripts(workflow: Path) -> list[str]:
    return [step["run"] for step in steps(workflow) if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_every_script_is_clean(workflow: Path) -> None:
    checker = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run(
        [checker, "--shell=bash", "-"],
        input="\n".join(scripts(workflow)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_scripts_start_what_is_there() -> None:
    text = "\n".join(script for workflow in WORKFLOWS for script in scripts(workflow))
    makefile = (REPOSITORY / "Makefile").read_text()
    programs = re.findall(r"^[\w.]+/\S+", text, re.MULTILINE)
    assert {".ci/run", "hack/images.sh"} == set(programs)
    assert all((REPOSITORY / each).exists() for each in programs)
    for line in re.findall(r"^make .*", text, re.MULTILINE):
        _, target, *variables = line.split()
        recipe = makefile.partition(f"\n{target}:")[2].partition("\n\n")[0]
        assert recipe
        assert all(f"$({each.partition('=')[0]})" in recipe for each in variables)


def test_the_release_says_where_the_tag_is_not_the_version(tmp_path: Path) -> None:
    (check,) = (
        step["run"]
        for workflow in WORKFLOWS
        for step in steps(workflow)
        if step.get("name") == "Check that the tag is the version"
    )
    for tag, code in ((f"v{version()}", 0), (version(), 1), ("v9.9.9", 1)):
        environment = {"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"}
        command = ["bash", "-euc", check]
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, check=False)
        assert done.returncode == code
