"""The command line: one function a verb. Open, call the library, print.

Every verb is named after the method it calls, takes `--json` where a machine might read, and ends
its help in an example. Errors and warnings are one line each, with the remedy; after an error the
exit status is 1.
"""

import warnings
from collections.abc import Callable
from typing import Any

import click

import expdb


class _Group(click.Group):
    """Show an error or a warning of expdb as one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", expdb.ExpDBWarning)
                warnings.showwarning = _show
                return super().invoke(ctx)
        except expdb.ExpDBError as error:
            raise click.ClickException(str(error)) from None
        except FileExistsError as error:
            raise click.ClickException(str(error)) from None


def _show(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"Warning: {message}", err=True)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(expdb.__version__, prog_name="expdb")
def main() -> None:
    """expdb: the experience database for reinforcement-learning and LLM agents."""


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


def verb(function: Callable[..., Any]) -> click.Command:
    """Make a command of a function.

    Its name without the underscore, its docstring as it is laid out.
    """
    if function.__doc__:
        function.__doc__ = function.__doc__.replace("\n    Example:", "\n    \b\n    Example:")
    return main.command(function.__name__.rstrip("_"))(function)
