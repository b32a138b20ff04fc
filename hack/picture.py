"""``python -m hack.picture``: draws docs/pictures/map.svg from a busy simulated cluster."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from xml.sax.saxutils import escape

from dra.common.resources import (
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Obj,
    at,
)
from dra.kube.client import KubeApi
from sim.cluster.cluster import Cluster, ClusterShape, running_cluster

_CELL_WIDTH, _CELL_HEIGHT, _MARGIN, _FONT_SIZE = 8.43, 18, 16, 14
_FONTS = "DejaVu Sans Mono, Menlo, Consolas, monospace"
_BACKGROUND, _FOREGROUND, _DIMMED = "#16181d", "#d7dae0", "#7f8694"
_PLAIN = {"31": "#e06c75", "32": "#98c379", "33": "#e5c07b"}
_BLACK = "#101216"
_CUBE = (0, 95, 135, 175, 215, 255)
_DRAWN = "│░"
_WORDS = re.compile(r"│|░+|[^\s│░]+(?: [^\s│░]+)*")
_ESCAPE = re.compile(r"\x1b\[([0-9;]*)m")
_PROMPT = "$ "


@dataclass(frozen=True, slots=True)
class _Pen:
    color: str = _FOREGROUND
    background: str = ""
    bold: bool = False


def render(command: str, shown: str) -> str:
    """The SVG of a terminal in which ``command`` has just shown ``shown`` (with SGR escapes)."""
    lines = [f"\x1b[2m{_PROMPT}\x1b[0m{command}", *shown.replace("\r", "").rstrip("\n").split("\n")]
    columns = max(len(_ESCAPE.sub("", line)) for line in lines)
    width = round(columns * _CELL_WIDTH + 2 * _MARGIN)
    height = len(lines) * _CELL_HEIGHT + 2 * _MARGIN
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    font = f'font-size="{_FONT_SIZE}" font-family="{_FONTS}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} shape-rendering="crispEdges">',
        f"<title>{escape(command)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{_BACKGROUND}"/>',
    ]
    for number, line in enumerate(lines):
        parts += _line(line, _MARGIN + number * _CELL_HEIGHT)
    return "\n".join([*parts, "</svg>", ""])


def _line(line: str, top: int) -> list[str]:
    parts, column, pen = [], 0, _Pen()
    pieces = _ESCAPE.split(line)
    for index, piece in enumerate(pieces):
        if index % 2:
            pen = _switch(pen, piece)
        elif piece:
            parts += _run(piece, column, top, pen)
            column += len(piece)
    return parts


def _run(text: str, column: int, top: int, pen: _Pen) -> list[str]:
    """A run of one colour: a box behind it, and its words where their columns are."""
    x = _MARGIN + column * _CELL_WIDTH
    parts = []
    if pen.background:
        parts.append(
            f'<rect x="{x:.1f}" y="{top}" width="{len(text) * _CELL_WIDTH:.1f}" '
            f'height="{_CELL_HEIGHT}" fill="{pen.background}"/>'
        )
    weight = ' font-weight="bold"' if pen.bold else ""
    for found in _WORDS.finditer(text):
        word = found[0]
        at = x + found.start() * _CELL_WIDTH
        if word[0] in _DRAWN:
            parts.append(_drawn(word, at, top, pen.color))
            continue
        # The length makes the columns hold whatever monospaced font is there.
        parts.append(
            f'<text x="{at:.1f}" y="{top + 13.5}" fill="{pen.color}"{weight} '
            f'textLength="{len(word) * _CELL_WIDTH:.1f}" lengthAdjust="spacingAndGlyphs" '
            f'xml:space="preserve">{escape(word)}</text>'
        )
    return parts


def _drawn(characters: str, x: float, top: int, color: str) -> str:
    """Borders and hatching as shapes: fonts leave gaps between the lines."""
    width = len(characters) * _CELL_WIDTH
    if characters[0] == "│":
        x, width, opacity = x + _CELL_WIDTH / 2 - 0.5, 1.0, "0.55"
    else:
        opacity = "0.22"
    return (
        f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_CELL_HEIGHT}" '
        f'fill="{color}" fill-opacity="{opacity}"/>'
    )


def _switch(pen: _Pen, codes: str) -> _Pen:
    """The pen after an SGR sequence."""
    if codes in ("", "0"):
        return _Pen()
    if codes == "1":
        return replace(pen, bold=True)
    if codes == "2":
        return replace(pen, color=_DIMMED)
    if codes in _PLAIN:
        return replace(pen, color=_PLAIN[codes])
    found = re.fullmatch(r"30;48;5;(\d+)", codes)
    return replace(pen, color=_BLACK, background=_xterm(int(found[1]))) if found else pen


def _xterm(number: int) -> str:
    """One of xterm's 256 colours: the cube of 216, or the greys after it."""
    if number >= 232:  # noqa: PLR2004 - where the greys begin
        grey = 8 + 10 * (number - 232)
        return f"#{grey:02x}{grey:02x}{grey:02x}"
    red, rest = divmod(number - 16, 36)
    green, blue = divmod(rest, 6)
    return f"#{_CUBE[red]:02x}{_CUBE[green]:02x}{_CUBE[blue]:02x}"


_PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "map.svg"
_SHAPE = ClusterShape(nodes=2, gpus=("A100-SXM4-40GB", "A100-SXM4-40GB", "H100-80GB-HBM3", "A30"))
_PODS = (
    ("research", "pretrain", "mig-7g.80gb"),
    ("research", "finetune", "mig-4g.20gb"),
    ("research", "eval-0", "mig-3g.20gb"),
    ("research", "crashed", "mig-2g.10gb"),
    ("web", "llm-a", "mig-2g.10gb"),
    ("web", "llm-b", "mig-2g.12gb"),
    ("web", "rank", "mig-1g.5gb"),
    ("web", "embed-0", "mig-1g.6gb"),
    ("web", "embed-1", "mig-1g.6gb"),
    ("team", "nb-ann", "mig-1g.5gb"),
    ("team", "nb-ben", "mig-1g.5gb"),
    ("team", "nb-cho", "mig-1g.10gb"),
)
_HOLDER = 4711
_SECONDS = 60.0


def main() -> None:
    """Fill the cluster, take the picture, write it."""
    with running_cluster(_SHAPE) as cluster:
        second = cluster.places[1].machine
        second.set_mig_mode(2, enabled=False)
        second.create_slice(1, "3g.20gb", start=4)
        _until("the foreign instance", lambda: "foreign" in _states(cluster))
        for namespace in sorted({namespace for namespace, _, _ in _PODS}):
            cluster.api.create(NAMESPACES, {"metadata": {"name": namespace}})
        for namespace, name, device_class in _PODS:
            _start(cluster.api, namespace, name, device_class)
        _until("all pods to run", lambda: _running(cluster.api) == len(_PODS))
        _leave_behind(cluster, "crashed")
        _mig(cluster, "drain", "node-2", "gpu-3", "--reason", "driver 580")
        _PICTURE.parent.mkdir(exist_ok=True)
        _PICTURE.write_text(render("kubectl mig map", _on_terminal(cluster, "map")))
    sys.stdout.write(f"{_PICTURE} written\n")


def _start(api: KubeApi, namespace: str, name: str, device_class: str) -> None:
    request = {"name": "slice", "exactly": {"deviceClassName": device_class}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    metadata = {"name": name, "namespace": namespace}
    api.create(RESOURCE_CLAIM_TEMPLATES, {"metadata": metadata, "spec": spec})
    container = {"name": "main", "image": "app", "resources": {"claims": [{"name": "gpu"}]}}
    pod: Obj = {
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
    }
    api.create(PODS, {"metadata": metadata, "spec": pod})
    _until(f"{name} to run", lambda: _phase(api, namespace, name) == "Running")


def _leave_behind(cluster: Cluster, name: str) -> None:
    """A process keeps the slice of a pod that is gone."""
    claims = cluster.api.list(RESOURCE_CLAIMS).items
    claim = next(c for c in claims if c["metadata"]["name"].startswith(f"{name}-"))
    uid, namespace = claim["metadata"]["uid"], claim["metadata"]["namespace"]
    for place, inventory in zip(cluster.places, cluster.inventories(), strict=True):
        for number, gpu in enumerate(inventory.gpus):
            for instance in gpu.instances:
                if instance.claim is None or instance.claim.uid != uid:
                    continue
                gi, ci = instance.gpu_instance_id, instance.compute_instance_id
                if gi is not None and ci is not None:
                    place.machine.start_process(
                        number, _HOLDER, gpu_instance=gi, compute_instance=ci
                    )
    cluster.api.delete(PODS, name, namespace=namespace)
    _until("the process to be named", lambda: str(_HOLDER) in _messages(cluster))


def _states(cluster: Cluster) -> set[str]:
    return {i.state.value for n in cluster.inventories() for g in n.gpus for i in g.instances}


def _messages(cluster: Cluster) -> str:
    return " ".join(i.message for n in cluster.inventories() for g in n.gpus for i in g.instances)


def _phase(api: KubeApi, namespace: str, name: str) -> str:
    return str(at(api.get(PODS, name, namespace=namespace), "status", "phase", default=""))


def _running(api: KubeApi) -> int:
    return sum(at(p, "status", "phase") == "Running" for p in api.list(PODS).items)


def _until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited in vain for {what}")
        time.sleep(0.05)


def _mig(cluster: Cluster, *arguments: str) -> None:
    command = [sys.executable, "-m", "cli", *arguments]
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    subprocess.run(command, env=env, check=False, stdout=subprocess.DEVNULL)


def _on_terminal(cluster: Cluster, *arguments: str) -> str:
    """Output of the command on a terminal of 112 columns with colours."""
    reader, writer = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    env |= {"KUBECONFIG": str(cluster.kubeconfig), "TERM": "xterm-256color", "COLUMNS": "112"}
    command = [sys.executable, "-m", "cli", *arguments]
    with subprocess.Popen(command, stdout=writer, env=env) as process:
        os.close(writer)
        shown = b""
        while more := _more(reader):
            shown += more
        if process.wait() != 0:
            raise SystemExit(f"{command} failed")
    os.close(reader)
    return shown.decode()


def _more(reader: int) -> bytes:
    try:
        return os.read(reader, 65536)
    except OSError:  # a terminal whose other end is closed
        return b""


if __name__ == "__main__":
    main()
