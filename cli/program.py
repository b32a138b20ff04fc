"""``kubectl-mig``: its command line, and the completion of it.

Help, completion of commands and mistakes are answered without loading what a command needs.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.core import ParameterSource
from click.exceptions import NoArgsIsHelpError
from click.shell_completion import CompletionItem, ShellComplete

from cli.output import CliError, Exit

_NAME = "kubectl mig"
_WITH_EQUALS = re.compile(r"^(-[onf])=")
_FILES, _NO_FILES = 0, 4
"""Directives of cobra: to offer files where there are no candidates, or not to."""

_EXIT_CODES = """\b
exit codes:
  0  nothing to report        3  the cluster cannot be reached
  1  something waits or is    4  no such object
     wrong, see the output    5  not allowed
  2  the command line is wrong
"""

Offer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is one of ``cli.output``."""
    if argv is None:
        gc.disable()  # a whole cluster is read once: collections would take half of the time
    # kubectl accepts -o=json, of which click would take "=json" for the value.
    words = [_WITH_EQUALS.sub(r"\1", each) for each in (sys.argv[1:] if argv is None else argv)]
    try:
        return int(PROGRAM.main(words, prog_name=_NAME, standalone_mode=False) or Exit.OK)
    except NoArgsIsHelpError as error:
        error.show()
        return Exit.OK
    except click.ClickException as error:
        error.show()
        return Exit.USAGE


def complete(words: Sequence[str] | None = None) -> int:
    """Print candidates for the last word, and a directive, as ``kubectl_complete-mig``.

    kubectl (1.26 and newer) runs the program of this name on the PATH with the words of the command
    line, the last one unfinished. It reads a candidate from each line, and then the directive.
    """
    *before, last = (sys.argv[1:] if words is None else words) or [""]
    found = ShellComplete(PROGRAM, {}, _NAME, "").get_completions(before, last)
    for each in found:
        if each.type == "plain":
            sys.stdout.write(f"{each.value}\t{each.help}\n" if each.help else f"{each.value}\n")
    files = any(each.type != "plain" for each in found)
    sys.stdout.write(f":{_FILES if files else _NO_FILES}\n")
    return Exit.OK


class _Program(click.Group):
    """Commands in the order of the code, whose options may also stand before them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Pass options that stand before a command on to the command, as kubectl does."""
        rest = super().parse_args(ctx, args)
        given = {
            name: value
            for name, value in ctx.params.items()
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
        ctx.default_map = dict.fromkeys(self.commands, given)
        return rest

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names, unsorted."""
        return [*self.commands]


def _names(kind: str, ctx: click.Context) -> list[str]:
    """Names in the cluster; none if it cannot be asked: completion must not print errors."""
    from cli.session import names_of  # noqa: PLC0415 - see the module

    try:
        return names_of(kind, ctx.params)
    except CliError:
        return []


def _offer(kind: str) -> Offer:
    """Completion by the names of objects of ``kind``, without those that are given already."""

    def names(ctx: click.Context, param: click.Parameter, last: str) -> list[CompletionItem]:
        given = ctx.params.get(param.name or "")
        before = given if isinstance(given, tuple) else ()
        found = [name for name in _names(kind, ctx) if name not in before]
        return [CompletionItem(name) for name in found if name.startswith(last)]

    return names


def _offer_subject(ctx: click.Context, _: click.Parameter, last: str) -> list[CompletionItem]:
    """Completion of ``[pod|claim] NAME``."""
    kinds, found = ["pod", "claim"], []
    given = ctx.params["subject"]
    if not given:
        found = [*kinds, *_names("pod", ctx)]
    elif len(given) == 1 and given[0] in kinds:
        found = _names(given[0], ctx)
    return [CompletionItem(name) for name in found if name.startswith(last)]


def _option(*names: str, text: str, **how: Any) -> click.Option:
    return click.Option([*names], help=text, **how)


def _flag(*names: str, text: str, **how: Any) -> click.Option:
    return click.Option([*names], help=text, is_flag=True, **how)


def _names_of(name: str, kind: str, **how: Any) -> click.Argument:
    """An argument that names objects of a kind, any number unless ``how`` has another."""
    return click.Argument([name], **{"nargs": -1, "shell_complete": _offer(kind), **how})


def _files() -> click.Argument:
    return click.Argument(["file"], nargs=-1, required=True, type=click.Path(allow_dash=True))


def _namespace() -> click.Option:
    offer = _offer("namespace")
    return _option("-n", "--namespace", text="default: that of the context", shell_complete=offer)


def _shared(forms: Sequence[str]) -> list[click.Parameter]:
    """Options of all commands: the cluster, and the form of the output."""
    config = "default: KUBECONFIG, then ~/.kube/config"
    driver = "of the driver, if the installation changed it"
    form = {"type": click.Choice(forms), "default": "text", "hidden": len(forms) == 1}
    return [
        _option("--kubeconfig", text=config, type=click.Path(), metavar="PATH"),
        _option("--context", text="of the kubeconfig; default: its own", metavar="NAME"),
        _option("-o", "--output", text="default: text", **form),
        _flag("--no-color", text="as does NO_COLOR"),
        _option("--driver-name", text=driver, default="mig.dra.dev", metavar="NAME"),
        _option("--request-timeout", text="", type=float, default=15.0, hidden=True),
    ]


def _command(  # noqa: PLR0913 - all that is said of a command
    name: str,
    summary: str,
    *params: click.Parameter,
    examples: Sequence[str],
    forms: Sequence[str] = ("text",),
    at: str = "",
    offline: bool = False,
) -> click.Command:
    """A command, done by ``cli.commands.<name>.run``, or by the function that ``at`` names.

    ``offline``: the function needs no cluster, and is given the output instead of a session.
    """

    def run(**options: Any) -> int:
        from cli.session import run_command  # noqa: PLC0415 - see the module

        return run_command(at or f"{name}.run", options, offline=offline)

    lines = "\n".join(f"  {_NAME} {each}" for each in examples)
    return click.Command(
        name,
        params=[*params, *_shared(forms)],
        callback=run,
        help=summary,
        epilog=f"\b\nexamples:\n{lines}\n\n{_EXIT_CODES}",
    )


_JSON, _WIDE = ("text", "json"), ("text", "wide", "json")
_MANY = click.IntRange(1, 100)
_PORT = click.IntRange(0, 65535)
_COMMANDS = (
    _command(
        "map",
        "Draw what sits where on every GPU, and the largest slice that still fits.",
        _names_of("node", "node"),
        examples=("map", "map node-1", "map -o wide"),
        forms=_WIDE,
    ),
    _command(
        "explain",
        "Say why a pod or claim waits, node by node and GPU by GPU, or where it sits.",
        click.Argument(
            ["subject"],
            nargs=-1,
            required=True,
            metavar="[pod|claim] NAME",
            shell_complete=_offer_subject,
        ),
        _namespace(),
        examples=(
            "explain trainer-0",
            "explain pod trainer-0 -n research",
            "explain claim/c -o json",
        ),
        forms=_WIDE,
    ),
    _command(
        "plan",
        "Say where slices of a profile would go; without room, what would have to move for them.",
        _option("-p", "--profile", text="or class, such as 3g.40gb", required=True, metavar="NAME"),
        _option("--number", text="of slices, default: 1", type=_MANY, default=1),
        examples=("plan --profile 3g.40gb", "plan -p mig-min-10gb --number 4"),
    ),
    _command(
        "defrag",
        "Make room for a pod that waits by moving others that allow it: the plan, or all of it.",
        _option("-p", "--profile", text="such as 3g.40gb", required=True, metavar="NAME"),
        _option(
            "--pod", text="default: the first in line that asks for it", default="", metavar="NAME"
        ),
        _namespace(),
        _flag("--execute", text="have the controller do it, and tell of each step"),
        _option("--timeout", text="of --execute; default: 600", default=600.0, metavar="SECONDS"),
        examples=("defrag -p 3g.40gb", "defrag -p 3g.40gb --pod trainer-0 -n research --execute"),
    ),
    _command(
        "ui",
        "Serve a page to this machine: maps of all GPUs, live, who waits and why, what happened.",
        _option("--port", text="of 127.0.0.1; default: a free one", type=_PORT, default=0),
        _namespace(),
        examples=("ui", "ui --port 8800", "ui -n research"),
    ),
    _command(
        "profiles",
        "List what the GPUs can be cut into, and how much of it could be had now.",
        _names_of("node", "node"),
        examples=("profiles", "profiles node-1"),
    ),
    _command(
        "doctor",
        "Check that everything is there that slices need, and that it works together.",
        examples=("doctor", "doctor -o json"),
        forms=_JSON,
    ),
    _command(
        "lint",
        "Find mistakes in manifests of pods, claims, templates and classes, without a cluster.",
        _files(),
        _flag("--strict", text="warnings are errors"),
        examples=("lint pod.yaml", "lint - < pod.yaml"),
        forms=_JSON,
        offline=True,
    ),
    _command(
        "convert",
        "Print manifests of other systems with claims instead of their limits, without a cluster.",
        _files(),
        examples=("convert pod.yaml", "convert - < pod.yaml"),
        offline=True,
    ),
    _command(
        "drain",
        "Place nothing new on a node's GPUs, and say who still uses them; 1 while somebody does.",
        _names_of("node", "node", nargs=1),
        _names_of("gpu", "gpu"),
        _option("--reason", text="what others read in map and explain", default=""),
        _flag("--wait", text="until nobody uses them and the plugin has none open"),
        _option("--timeout", text="of --wait; default: 600", default=600.0, metavar="SECONDS"),
        _flag("--evict", text="evict the pods that use them (budgets are respected)"),
        examples=("drain node-1 --reason 'driver 580' --wait --evict", "drain node-1 gpu-3"),
    ),
    _command(
        "resume",
        "Place slices on drained GPUs again.",
        _names_of("node", "node", nargs=1),
        _names_of("gpu", "gpu"),
        examples=("resume node-1", "resume node-1 gpu-3"),
        at="drain.resume",
    ),
    _command(
        "takeover",
        "Take a live node over from another manager of its GPUs; pods go on until they end.",
        _names_of("node", "node", nargs=1),
        _flag("--execute", text="do it; without, only say what would be done"),
        _flag("--status", text="how far it is; 1 until it is done"),
        examples=("takeover node-1", "takeover node-1 --execute", "takeover node-1 --status"),
    ),
    _command(
        "handback",
        "Hand a node back to the manager that it was taken over from; pods go on until they end.",
        _names_of("node", "node", nargs=1),
        _flag("--execute", text="do it; again, once nothing is left, to put the labels back"),
        _flag("--status", text="how far it is; 1 until nothing is left"),
        _flag("--restore/--no-restore", text="make the former instances again", default=None),
        examples=("handback node-1", "handback node-1 --execute --restore"),
        at="takeover.handback",
    ),
    _command(
        "release",
        "Take the driver's finalizer off claims that nothing holds, where no controller does it.",
        _names_of("name", "claim"),
        _namespace(),
        _flag("--all", "every", text="all claims of the namespace"),
        _flag("-A", "--all-namespaces", text="with --all: of every namespace"),
        _flag("--dry-run", text="only say what would be done"),
        _flag(
            "--force",
            text="also what its node still has a slice of, or cannot tell; not what pods use",
        ),
        examples=("release trainer-0-gpu-x7f2k -n research", "release --all -A --dry-run"),
    ),
)

PROGRAM = _Program(
    commands={each.name or "": each for each in _COMMANDS},
    params=[*_shared(_WIDE), _namespace()],
    callback=lambda **_: None,
    help="See what the GPUs of a cluster hold, why claims wait, and what is wrong.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
_SAID = "kubectl-mig %(version)s"
click.version_option(package_name="dra-driver-nvidia-mig", message=_SAID)(PROGRAM)
