"""Flags of a program: each is declared once, by the field that it sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import click


def flag(
    default: Any,
    help_: str,
    *,
    name: str = "",
    read: Callable[[Any], Any] = lambda given: given,
    **more: Any,
) -> Any:
    """Field that the flag of the same name, or called ``name``, sets.

    ``read``: converts the flag's value to that of the field; raises ValueError or
    click.BadParameter. ``more``: further arguments of click.option.
    """
    shown = {"show_default": default not in (None, "", False)}
    given = {"default": default, "help": help_, **shown, **more}
    return field(default=read(default), metadata={"name": name, "read": read, "given": given})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """Settings of every program that serves."""

    metrics_address: str = flag(
        "",
        "Serve metrics and probes (/metrics, /healthz, /readyz) here, such as :8080; without it, "
        "nowhere.",
        metavar="HOST:PORT",
    )
    log_level: str = flag(
        "info",
        "How much is logged.",
        type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    )
    log_format: str = flag(
        "text",
        "For people, or one JSON object a line.",
        type=click.Choice(["text", "json"]),
    )


def options_of(kind: type[Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Flag, field and arguments of click.option for each flag of ``kind``, in order of the help."""
    last = {each.name for each in fields(ProcessOptions)}
    found = [each for each in fields(kind) if each.metadata]
    return [
        (each.metadata["name"] or f"--{each.name.replace('_', '-')}", each.name, each.metadata)
        for each in sorted(found, key=lambda each: each.name in last)
    ]


def with_flags(kind: type[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the command has the flags of ``kind``, and takes them as ``**given``."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, of_field, metadata in reversed(options_of(kind)):
            command = click.option(name, of_field, **metadata["given"])(command)
        return command

    return decorate


def read_flags(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the fields of ``kind``, from the parameters of a command that has its flags.

    Raises:
        click.ClickException: a value is not understood.
    """
    values: dict[str, Any] = {}
    for name, of_field, metadata in options_of(kind):
        try:
            values[of_field] = metadata["read"](given[of_field])
        except click.BadParameter as error:
            error.param_hint = f"'{name}'"
            raise
        except ValueError as error:
            raise click.ClickException(f"{name}: {error}") from error
    return values
