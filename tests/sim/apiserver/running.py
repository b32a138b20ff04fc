"""The embedded API server as its own process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from tests.helpers.waiting import PATIENCE, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Server:
    """A running server."""

    kubeconfig: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        loaded = yaml.safe_load(self.kubeconfig.read_text())
        return str(loaded["clusters"][0]["cluster"]["server"])


@contextlib.contextmanager
def running_server(directory: Path, *flags: str, port: int = 0) -> Iterator[Server]:
    """Start a server and end it with SIGTERM, which it has to obey at once and without noise."""
    kubeconfig = directory / "kubeconfig"
    errors = directory / "stderr"
    command = [sys.executable, "-m", "sim", "apiserver", "--port", str(port)]
    command += ["--kubeconfig-out", str(kubeconfig), *flags]
    with errors.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
        try:

            def listens() -> bool:
                assert process.poll() is None, errors.read_text()
                return kubeconfig.exists()

            wait_for("the server", listens)
            yield Server(kubeconfig, process)
        finally:
            process.terminate()
            try:
                code = process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert code == 0, errors.read_text()
    assert errors.read_text() == ""
