"""``python -m hack.picture``: draws docs/pictures/map.svg of the cluster that KUBECONFIG names.

Such as one of ``make up`` on which pods run, beside a slice of somebody else
(``mig-sim nvml create``) and a GPU that is drained (``kubectl mig drain``).
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

_PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "map.svg"
_COLUMNS = 112
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def render(command: str, text: str) -> str:
    """Picture of a terminal (SVG) in which a command has written ``text``, with its colours.

    It names no font of another server.
    """
    console = Console(
        record=True,
        width=_COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
    )
    console.print(Text.from_ansi(f"$ {command}\n{text}"), end="", highlight=False)
    return _FONTS.sub("", console.export_svg(title=command))


def main() -> None:
    """Take the picture and write it."""
    _PICTURE.parent.mkdir(exist_ok=True)
    _PICTURE.write_text(render("kubectl mig map", _on_terminal("map")))
    sys.stdout.write(f"{_PICTURE} written\n")


def _on_terminal(*arguments: str) -> str:
    """Output of the command on a terminal with colours."""
    reader, writer = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    env |= {"TERM": "xterm-256color", "COLUMNS": str(_COLUMNS)}
    command = [sys.executable, "-m", "cli", *arguments]
    with subprocess.Popen(command, stdout=writer, env=env) as process:
        os.close(writer)
        shown = b""
        while more := _more(reader):
            shown += more
        if process.wait() != 0:
            raise SystemExit(f"{command} failed")
    os.close(reader)
    return shown.decode().replace("\r\n", "\n")


def _more(reader: int) -> bytes:
    try:
        return os.read(reader, 65536)
    except OSError:  # a terminal whose other end is closed
        return b""


if __name__ == "__main__":
    main()
