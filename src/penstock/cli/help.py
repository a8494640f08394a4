"""How ``--help`` reads: flags without a value, values in capitals, arguments as they are typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

_VALUES = {"<str>": "TEXT", "<int>": "N", "<float>": "N", "<list[str]>": "TEXT", "<Path>": "PATH", "<path>": "PATH"}

F = TypeVar("F", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command whose help is easy to read, whichever Typer writes it."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, each with a name for its value."""
        return [_tidied(param, ctx) for param in super().get_params(ctx)]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The parts of the usage line: ``NAME`` for what is needed, ``[ID]...`` for what may be left out."""
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        options = [self.options_metavar] if self.options_metavar else []
        return [*options, *(_in_usage(argument) for argument in arguments)]


class Group(TyperGroup):
    """A group of commands whose help is easy to read."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, each with a name for its value."""
        return [_tidied(param, ctx) for param in super().get_params(ctx)]


class App(typer.Typer):
    """Commands and groups with readable help."""

    def __init__(self, *, cls: type[TyperGroup] = Group, **options: Any) -> None:
        """As for Typer."""
        super().__init__(cls=cls, no_args_is_help=True, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        """As for Typer."""
        return super().command(name, **{"cls": Command, **options})


def _tidied(param: Any, ctx: Any) -> Any:
    if param.param_type_name == "argument":
        # An argument's name says what it is; newer versions of Typer add its Python type.
        param.display_type_rich = lambda ctx: None
    elif getattr(param, "is_flag", False):
        param.metavar = ""
    elif param.metavar is None and hasattr(param, "display_type"):
        shown = param.display_type(ctx)
        # The range of a number is printed after it anyway.
        param.metavar = "N" if shown.startswith(("<int range>", "<float range>")) else _VALUES.get(shown)
    return param


def _in_usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    shown = name if argument.required else f"[{name}]"
    return f"{shown}..." if argument.nargs != 1 else shown
