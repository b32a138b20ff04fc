"""Commands that need no cluster, on a file of manifests, without a kubeconfig."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.program import main
from tests.cli.conftest import Ran

Command = Callable[..., Ran]


def of(name: str) -> Callable[..., Command]:
    @pytest.fixture(name=name)
    def command(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> Command:
        monkeypatch.chdir(tmp_path)

        def run(text: str, *arguments: str) -> Ran:
            Path("f.yaml").write_text(text)
            code = main([name, "f.yaml", "--kubeconfig", "/nowhere", *arguments])
            captured = capsys.readouterr()
            return Ran(code, captured.out, captured.err)

        return run

    return command


lint, convert = of("lint"), of("convert")
