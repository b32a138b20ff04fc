"""Completion of shell commands after ``kubectl mig``, through ``kubectl_complete-mig``.

kubectl (1.26 and newer) runs the program of this name on the PATH with the words of the command
line, the last one unfinished, and reads candidates a line each and a directive from it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from cli.shell.arguments import parser

Names = Callable[[str, argparse.Namespace], list[str]]
"""Reader of the names of a kind of object, in a cluster and namespace."""

_FILES = 0
_NO_FILES = 4
"""Directives of cobra: offer files where there are no candidates, or do not."""

_KINDS: Mapping[str, tuple[str, ...]] = {
    "map": ("node",),
    "profiles": ("node",),
    "drain": ("node", "gpu"),
    "resume": ("node", "gpu"),
    "explain": ("subject",),
    "release": ("claim",),
    "kueue": ("device_class",),
}
"""Command to the kinds of its positional arguments; the last one repeats."""

_VALUES: Mapping[str, str] = {"--namespace": "namespace", "--kubeconfig": "file"}
_SUBJECTS = ("pod", "claim")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the candidates for the last word and the directive."""
    words = list(sys.argv[1:] if argv is None else argv) or [""]
    found, directive = complete(words, _names)
    for candidate in found:
        sys.stdout.write(candidate + "\n")
    sys.stdout.write(f":{directive}\n")
    return 0


def complete(words: Sequence[str], names: Names) -> tuple[list[str], int]:
    """Candidates for the last of ``words``, a tab and a description behind some, and directive."""
    *before, last = words
    found = _candidates(before, last, names)
    if found is None:
        return [], _FILES
    return [c for c in found if c.startswith(last)], _NO_FILES


def _candidates(before: Sequence[str], last: str, names: Names) -> list[str] | None:
    """Candidates to follow ``before``; None for files."""
    commands = next(a.choices for a in parser()._actions if isinstance(a.choices, dict))  # noqa: SLF001 - argparse has no other way to ask
    if not before:
        return [f"{name}\t{command.description}" for name, command in commands.items()]
    if before[0] not in commands:
        return []
    options = {flag: a for a in commands[before[0]]._actions for flag in a.option_strings}  # noqa: SLF001 - as above
    pending = options.get(before[-1])
    if pending is not None and pending.nargs is None:
        return _values(pending, before, names)
    if last.startswith("-"):
        return [f"{flag}\t{a.help}" for flag, a in options.items() if a.help != argparse.SUPPRESS]
    if before[0] in ("convert", "lint"):
        return None
    given = list(_positionals(before[1:], options))
    return _objects(before[0], given, _where(before), names)


def _values(option: argparse.Action, before: Sequence[str], names: Names) -> list[str] | None:
    """Values that an option takes; None for files."""
    kind = next((_VALUES[f] for f in option.option_strings if f in _VALUES), "")
    if kind == "file":
        return None
    if option.choices:
        return [str(each) for each in option.choices]
    return names(kind, _where(before)) if kind else []


def _objects(
    command: str, given: Sequence[str], where: argparse.Namespace, names: Names
) -> list[str]:
    kinds = _KINDS.get(command, ())
    if not kinds:
        return []
    kind = kinds[min(len(given), len(kinds) - 1)]
    if kind == "gpu":
        where.node = given[0]
    if kind != "subject":
        return [name for name in names(kind, where) if name not in given]
    if not given:
        return [*_SUBJECTS, *names("pod", where)]
    return names(given[0], where) if given[0] in _SUBJECTS and len(given) == 1 else []


def _positionals(words: Sequence[str], options: Mapping[str, argparse.Action]) -> Iterator[str]:
    value = False
    for word in words:
        action = options.get(word)
        if not value and action is None and not word.startswith("-"):
            yield word
        value = action is not None and action.nargs is None


def _where(words: Sequence[str]) -> argparse.Namespace:
    """Cluster and namespace that the words before name."""
    reader = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for flag in ("--kubeconfig", "--context"):
        reader.add_argument(flag, nargs="?")
    reader.add_argument("-n", "--namespace", nargs="?")
    reader.add_argument("--driver-name", nargs="?", default="mig.dra.dev")
    return reader.parse_known_args(words)[0]


def _names(kind: str, where: argparse.Namespace) -> list[str]:
    """Names in the cluster; none where it cannot be asked: completion is no place for errors."""
    # Commands and options are completed without loading the rest.
    from cli.shell.exits import CliError  # noqa: PLC0415
    from cli.shell.running import names_of  # noqa: PLC0415

    try:
        return names_of(kind, where)
    except CliError:
        return []
