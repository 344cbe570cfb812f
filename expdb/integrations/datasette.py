"""A Datasette plugin that adds the SQL functions `field` and `priority` to expdb databases.

Datasette finds the plugin by its entry point if expdb is installed in the same environment:

    pip install datasette '.[cli]'   # in a checkout of expdb
    datasette serve runs.db

    SELECT task_id, field(payload, 'action') FROM experience LIMIT 10
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import expdb
from expdb import errors

try:
    from datasette import hookimpl
except ImportError as error:
    raise errors.DriverMissing(
        f"Datasette cannot be imported ({error}); run `pip install datasette`"
    ) from error


@hookimpl  # type: ignore[untyped-decorator]
def prepare_connection(conn: Any) -> None:
    """Register `field` and `priority` on a connection that Datasette has opened."""
    with suppress(errors.NotAnExperienceDatabase):  # Datasette serves other files, too
        expdb.register(conn)
