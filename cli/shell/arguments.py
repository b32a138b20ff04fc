"""Arguments of the command line, and their help texts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

_EXIT_CODES = """\
exit codes:
  0  nothing to report        3  the cluster cannot be reached
  1  something waits or is    4  no such object
     wrong, see the output    5  not allowed
  2  the command line is wrong
"""


def parser() -> argparse.ArgumentParser:
    """Parser of ``kubectl-mig``; ``command`` of its result names a module of ``cli.commands``."""
    top = argparse.ArgumentParser(
        prog="kubectl mig",
        description="See what the GPUs of a cluster hold, why claims wait, and what is wrong.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=_Version)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _map(commands)
    _explain(commands)
    _profiles(commands)
    _doctor(commands)
    _lint(commands)
    _convert(commands)
    _drain(commands)
    _resume(commands)
    _release(commands)
    _kueue(commands)
    _bundle(commands)
    return top


class _Version(argparse.Action):
    """Prints the version, which is looked up only then."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """End the program."""
        from cli.shell.versions import version  # noqa: PLC0415 - see above

        sys.stdout.write(f"kubectl-mig {version()}\n")
        parser.exit()


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    *,
    examples: str,
    forms: tuple[str, ...] = ("text", "json"),
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"examples:\n{examples}\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cluster = command.add_argument_group("cluster and output")
    cluster.add_argument(
        "--kubeconfig", metavar="PATH", help="default: KUBECONFIG, then ~/.kube/config"
    )
    cluster.add_argument("--context", metavar="NAME", help="of the kubeconfig; default: its own")
    cluster.add_argument("-o", "--output", choices=forms, default="text", help="default: text")
    cluster.add_argument("--no-color", action="store_true", help="as does NO_COLOR")
    cluster.add_argument(
        "--driver-name",
        default="mig.dra.dev",
        metavar="NAME",
        help="of the driver, if the installation changed it",
    )
    cluster.add_argument(
        "--request-timeout", type=float, default=15.0, metavar="SECONDS", help=argparse.SUPPRESS
    )
    return command


def _map(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "map",
        "Draw what sits where on every GPU, and the largest slice that still fits.",
        examples="  kubectl mig map\n  kubectl mig map node-1 --watch\n  kubectl mig map -o wide\n",
        forms=("text", "wide", "json"),
    )
    command.add_argument("node", nargs="*", help="only these nodes")
    command.add_argument("-w", "--watch", action="store_true", help="draw again at every change")


def _explain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "explain",
        "Say why a pod or claim waits, node by node and GPU by GPU, or where it sits.",
        examples="  kubectl mig explain trainer-0\n"
        "  kubectl mig explain pod trainer-0 -n research\n"
        "  kubectl mig explain claim/trainer-0-gpu-x7f2k -o json\n",
        forms=("text", "wide", "json"),
    )
    command.add_argument(
        "subject",
        nargs="+",
        metavar="NAME",
        help="a pod or claim: NAME, pod NAME or claim NAME (or with a slash)",
    )
    command.add_argument("-n", "--namespace", help="default: that of the context")


def _profiles(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "profiles",
        "List what the GPUs can be cut into, and how much of it could be had now.",
        examples="  kubectl mig profiles\n  kubectl mig profiles node-1 -o json\n",
    )
    command.add_argument("node", nargs="*", help="only the GPUs of these nodes")


def _doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _command(
        commands,
        "doctor",
        "Check that everything is there that slices need, and that it works together.",
        examples="  kubectl mig doctor\n  kubectl mig doctor -o json\n",
    )


def _lint(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "lint",
        "Find mistakes in manifests of pods, claims, templates and classes, without a cluster.",
        examples="  kubectl mig lint pod.yaml\n  helm template . | kubectl mig lint -\n",
    )
    _add_files(command)
    command.add_argument("--strict", action="store_true", help="warnings are errors")
    command.add_argument("--hints", action="store_true", help="also what could be better")


def _convert(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "convert",
        "Print manifests of other systems with claims instead of their limits, without a cluster.",
        examples="  kubectl mig convert pod.yaml\n  helm template . | kubectl mig convert -\n",
    )
    _add_files(command)


def _add_files(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", nargs="+", help="files, directories, or - for the standard input")


def _drain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "drain",
        "Place nothing new on a node's GPUs, and say who still uses them; 1 while somebody does.",
        examples="  kubectl mig drain node-1 --reason 'driver 580' --wait --evict\n"
        "  kubectl mig drain node-1 gpu-3\n",
    )
    command.add_argument("node", help="the node")
    command.add_argument("gpu", nargs="*", help="only these GPUs, such as gpu-0; default: all")
    command.add_argument("--reason", default="", help="what others read in map and explain")
    command.add_argument(
        "--wait",
        action="store_true",
        help="until nobody uses them and the plugin has none open",
    )
    command.add_argument(
        "--timeout", type=float, default=600.0, metavar="SECONDS", help="of --wait; default: 600"
    )
    command.add_argument(
        "--evict", action="store_true", help="evict the pods that use them (budgets are respected)"
    )


def _resume(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "resume",
        "Place slices on drained GPUs again.",
        examples="  kubectl mig resume node-1\n  kubectl mig resume node-1 gpu-3\n",
    )
    command.add_argument("node", help="the node")
    command.add_argument("gpu", nargs="*", help="only these GPUs; default: all")


def _release(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "release",
        "Take the driver's finalizer off claims that nothing holds, where no controller does it.",
        examples="  kubectl mig release trainer-0-gpu-x7f2k -n research\n"
        "  kubectl mig release --all --all-namespaces --dry-run\n",
    )
    command.add_argument("name", nargs="*", help="of the claims")
    command.add_argument("-n", "--namespace", help="default: that of the context")
    command.add_argument("--all", action="store_true", help="all claims of the namespace")
    command.add_argument(
        "-A", "--all-namespaces", action="store_true", help="with --all: of every namespace"
    )
    command.add_argument("--dry-run", action="store_true", help="only say what would be done")
    command.add_argument(
        "--force",
        action="store_true",
        help="also what its node still has a slice of, or cannot tell; not what pods use",
    )


def _kueue(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "kueue",
        "Print the part of Kueue's configuration by which it counts claims for quota.",
        examples="  kubectl mig kueue\n"
        "  kubectl mig kueue mig-1g.5gb mig-3g.20gb\n"
        "  kubectl mig kueue mig.dra.dev --by memory\n",
    )
    command.add_argument(
        "device_class", nargs="*", metavar="class", help="of these; default: the generated ones"
    )
    command.add_argument(
        "--by", choices=("count", "memory"), default="count", help="what is counted; default: count"
    )


def _bundle(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "bundle",
        "Write the driver's state, logs and metrics into one file, for whoever is to help.",
        examples="  kubectl mig bundle\n  kubectl mig bundle --file /tmp/mig.tar.gz\n",
    )
    command.add_argument(
        "-f", "--file", metavar="PATH", help="a new .tar.gz; default: mig-bundle-<time>.tar.gz"
    )
