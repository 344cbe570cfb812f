"""The command line: one function per verb, which opens a database, calls the library and prints.

A verb is named after the method that it calls and has `--json` for programs; its help ends with an
example. An error or a warning is one line; after an error the exit status is 1. The library is
imported when a verb runs, so that help, completion and usage errors take no time.
"""

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import click

import expdb

LOCATION = "EXPDB_LOCATION"


class Verb(click.Command):
    """A verb whose first argument, a location, may be left out if EXPDB_LOCATION is set."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, with the location of the environment before them if needed."""
        default = os.environ.get(LOCATION)
        first = next((one for one in self.params if isinstance(one, click.Argument)), None)
        if default and first is not None and first.name in ("location", "source"):
            parsed, _, _ = self.make_parser(ctx).parse_args(list(args))
            if not is_location(parsed.get(first.name)):
                args = [default, *args]
        return super().parse_args(ctx, args)


def is_location(value: Any) -> bool:
    """Return whether an argument names a database rather than a buffer, a query or an episode."""
    return isinstance(value, str) and (
        "://" in value or value.endswith((".db", ".sqlite", ".sqlite3")) or os.path.isfile(value)
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(expdb.__version__, prog_name="expdb")
def main() -> None:
    """expdb: the experience database for reinforcement-learning and LLM agents.

    If the environment variable EXPDB_LOCATION names a database, verbs use it unless they are given
    another location. In bash, `eval "$(_EXPDB_COMPLETE=bash_source expdb)"` enables completion.
    """


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


def verb(function: Callable[..., Any]) -> click.Command:
    """Make a command of a function, named after it, with its docstring as the help."""
    if function.__doc__:
        function.__doc__ = function.__doc__.replace("\n    Example:", "\n    \b\n    Example:")
    name = function.__name__.rstrip("_").replace("_", "-")
    return main.command(name, cls=Verb)(_report_errors(function))


def _report_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Print an error or a warning of expdb as one line."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", expdb.ExpDBWarning)
                warnings.showwarning = _show
                return function(*args, **kwargs)
        except (expdb.ExpDBError, FileExistsError) as error:
            raise click.ClickException(for_terminal(str(error))) from None

    return call


def _show(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"Warning: {for_terminal(str(message))}", err=True)


# Advice for Python programs, and its replacement for the command line.
_ADVICE = {
    "required=True raises an error instead": "--required fails instead",
    "open the database with a longer timeout": "select fewer steps",
    "try again, or open it with a longer timeout": "try again",
    "change data with the methods of the buffer": "use `expdb tag` to change tags",
    "give every :name of the query in params": "give every :name of the query with --param",
    "db.sql": "expdb sql",
    "timestamps=True": "--timestamps",
}


def for_terminal(message: str) -> str:
    """Return a message of the library with advice for the command line."""
    for program, terminal in _ADVICE.items():
        message = message.replace(program, terminal)
    return message
