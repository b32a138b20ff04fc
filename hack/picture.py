"""``python -m hack.picture``: draws docs/pictures/map.svg of the cluster that KUBECONFIG names.

Such as one of ``make up`` on which pods run, beside a slice of somebody else
(``mig-sim nvml create``) and a GPU that is drained (``kubectl mig drain``).
"""

from __future__ import annotations

import io
import os
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
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    env |= {"TERM": "xterm-256color", "COLUMNS": str(_COLUMNS)}
    # On a terminal of its own, so that it has colours.
    command = ["script", "--quiet", "--return", "--command", f"{sys.executable} -m cli map"]
    done = subprocess.run([*command, os.devnull], env=env, check=True, capture_output=True)
    _PICTURE.write_text(render("kubectl mig map", done.stdout.decode().replace("\r\n", "\n")))
    sys.stdout.write(f"{_PICTURE} written\n")


if __name__ == "__main__":
    main()
