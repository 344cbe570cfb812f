"""The command line: each command opens a database, calls the library and prints the result.

Every command accepts `--json`, and its help ends with an example. An error or a warning is one
line. After an error, the exit status is 1. Commands import the library only when they run, so help,
completion and usage errors are fast.
"""

import difflib
import errno
import functools
import os
import re
import warnings
from collections.abc import Callable
from typing import Any

import click

import expdb
from expdb import errors

LOCATION = "EXPDB_LOCATION"
BUFFER_OPTION = "--buffer"


class Verb(click.Command):
    """A command that can take its location from the environment variable EXPDB_LOCATION.

    The option --buffer can replace the argument BUFFER.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, without the argument BUFFER if --buffer replaces it."""
        replaced = "buffer" if ctx.meta.get(BUFFER_OPTION) else None
        return [param for param in super().get_params(ctx) if param.opts != [replaced]]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; if they contain a buffer too many, say where a buffer belongs."""
        parsed, _, _ = self.make_parser(ctx).parse_args(list(args))
        ctx.meta[BUFFER_OPTION] = parsed.get("buffer_") is not None
        once = "pass the buffer once, as BUFFER or with --buffer"
        try:
            rest = self._parse_with_location(ctx, args)
        except click.UsageError as error:
            message = error.format_message().rstrip(".")
            takes_option = any(BUFFER_OPTION in param.opts for param in self.params)
            if not takes_option or not re.match("Got unexpected extra|.*'POSITION'", message):
                raise
            hint = once if ctx.meta[BUFFER_OPTION] else "pass a buffer with --buffer NAME"
            raise click.UsageError(f"{message}; {hint}.", ctx) from None
        conditions = ctx.params.get("conditions")
        if ctx.meta[BUFFER_OPTION] and conditions and conditions[0] == ctx.params["buffer"]:
            raise click.UsageError(f"{conditions[0]!r} is not a condition; {once}.", ctx)
        return rest

    def _parse_with_location(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; if the location is missing, insert it from the environment."""
        default = os.environ.get(LOCATION)
        first = next(
            (parameter for parameter in self.params if isinstance(parameter, click.Argument)), None
        )
        if first is None or first.name not in ("location", "source"):
            return super().parse_args(ctx, args)
        parsed, _, _ = self.make_parser(ctx).parse_args(list(args))
        if default and not is_location(parsed.get(first.name)):
            args = [default, *args]
        try:
            return super().parse_args(ctx, list(args))
        except click.MissingParameter as error:
            # The first argument may be a buffer with the name of an existing file.
            if default and args[:1] != [default]:
                return super().parse_args(ctx, [default, *args])
            if error.param is not first:
                raise
            raise click.UsageError(
                "Missing argument 'LOCATION'; pass a path or a URL, or set EXPDB_LOCATION.",
                ctx,
            ) from None


def is_location(value: Any) -> bool:
    """Return whether an argument names a database rather than a buffer, a query or an episode."""
    return isinstance(value, str) and (
        re.fullmatch(r"[\w+]+://\S+", value) is not None
        or value.endswith((".db", ".sqlite", ".sqlite3"))
        or _is_file(value)
    )


def _is_file(path: str) -> bool:
    return os.path.isfile(path) and os.path.getsize(path) > 0


# Unknown command names that users may type, and the command to suggest.
_INSTEAD = {
    **dict.fromkeys(("list", "ls", "stats", "buffers", "fields"), "info"),
    **dict.fromkeys(("compact", "shrink"), "vacuum"),
    **dict.fromkeys(("episodes", "steps", "find"), "query"),
    **dict.fromkeys(("workers", "waiting"), "actors"),
    **dict.fromkeys(("dump", "parquet"), "export"),
    **dict.fromkeys(("delete", "rm"), "drop"),
    **dict.fromkeys(("web", "ui", "dashboard"), "serve"),
    **dict.fromkeys(("load", "ingest"), "import"),
    "merge": "copy",
    "migrate": "upgrade",
}


class Commands(click.Group):
    """A command group that suggests a similar command if a name is unknown."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.list_commands(ctx), 1)
            meant = _INSTEAD.get(name) or (near[0] if near else None)
            hint = (
                f"did you mean `expdb {meant}`?"
                if meant
                else "run `expdb --help` to list all commands"
            )
            raise click.UsageError(f"No such command {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(expdb.__version__, prog_name="expdb")
def main() -> None:
    """expdb: the experience database for reinforcement-learning and LLM agents.

    LOCATION is a path such as runs.db, or a URL such as postgresql://user@host/database. If you set
    the environment variable EXPDB_LOCATION, you can omit LOCATION.

    In bash, `eval "$(_EXPDB_COMPLETE=bash_source expdb)"` enables completion with Tab.
    """


as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def verb(function: Callable[..., Any]) -> click.Command:
    """Create a command with the name of a function and its docstring as help."""
    if function.__doc__:
        function.__doc__ = function.__doc__.replace("\n    Example:", "\n    \b\n    Example:")
    name = function.__name__.rstrip("_").replace("_", "-")
    command = main.command(name, cls=Verb)(_report_errors(function))
    if any(param.opts == ["buffer"] for param in command.params):
        command.params.append(
            click.Option([BUFFER_OPTION, "buffer_"], help="Name of the buffer; replaces BUFFER.",
                expose_value=False, callback=_set_buffer)
        )  # fmt: skip
    for param in command.params:
        is_text = isinstance(param.type, click.types.StringParamType)
        if is_text and param.name in ("location", "source", "target"):
            param.type = click.Path()  # so that the shell completes file names
    return command


def _set_buffer(ctx: click.Context, _: click.Parameter, name: str | None) -> None:
    if name is not None:
        ctx.params["buffer"] = name


def _report_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Print an error or a warning of expdb as one line."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", errors.ExpDBWarning)
                warnings.showwarning = _show
                return function(*args, **kwargs)
        except (expdb.ExpDBError, FileExistsError) as error:
            raise click.ClickException(for_terminal(str(error))) from None
        except OSError as error:
            if error.errno == errno.EPIPE:  # click ends the program
                raise
            raise click.ClickException(f"cannot write the output: {error.strerror}") from None

    return call


def _show(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"Warning: {for_terminal(str(message))}", err=True)


# Maps advice for Python programs in error messages to advice for the command line.
_ADVICE = {
    ", or wait with wait=seconds": "",
    "list episodes with buffer.episodes()": "list episodes with `expdb query --episodes`",
    "required=True raises an error instead": "--required fails instead",
    "open the database with a longer timeout": "select fewer steps",
    "try again, or open it with a longer timeout": "try again",
    "change data with the methods of the buffer": "use `expdb tag` to change tags",
    "pass every :name of the query in params": "pass every :name of the query with --param",
    "db.sql": "expdb sql",
    "timestamps=True": "--timestamps",
    'on_conflict="prefix"': "--on-conflict prefix",
    '"skip_equal"': "--on-conflict skip_equal",
    "on_conflict= ": "--on-conflict ",
    "transform=": "the function",
}


def for_terminal(message: str) -> str:
    """Return a message of the library with advice for the command line and no control codes."""
    for program, terminal in _ADVICE.items():
        message = message.replace(program, terminal)
    return "".join(character if character.isprintable() else " " for character in message)
