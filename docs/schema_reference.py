"""A Sphinx directive that describes the views and tables of a database."""

import logging
import tempfile
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import expdb
from expdb.sql.tables import metadata

VIEWS = ("experience", "experience_episodes", "experience_scores", "step_priorities")
MEANINGS = {  # of columns that are not in a table
    "buffer": "name of the buffer",
    "episode": "number of the episode in its buffer",
    "payload": "reference to the fields of the step, for `field(payload, 'name')`",
    "priority": "sampling priority; NULL if it was never set",
    "steps_held": "number of steps of the episode that are stored",
}
Row = tuple[str, str, str]


def describe_tables() -> dict[str, list[Row]]:
    """Return name, type and meaning of each column of each table."""
    return {
        table.name: [
            (
                column.name,
                str(column.type.compile()) + ("" if column.nullable else ", not null"),
                column.comment or "",
            )
            for column in table.columns
        ]
        for table in metadata.sorted_tables
    }


def describe_views() -> dict[str, list[Row]]:
    """Return name, type and meaning of each column of each view, read from a new database."""
    tables = describe_tables()
    columns = (column for table in ("scores", "episodes", "steps") for column in tables[table])
    meanings = {name: meaning for name, _, meaning in columns} | MEANINGS
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs each migration
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.db"
        expdb.open(path).close()
        engine = sa.create_engine(f"sqlite:///{path}")
        with engine.connect() as connection:
            views = {
                view: connection.execute(sa.text(f"PRAGMA table_info({view})")).all()
                for view in VIEWS
            }
        engine.dispose()
    return {
        view: [(row.name, row.type or "", meanings[row.name]) for row in rows]
        for view, rows in views.items()
    }


class SchemaReference(SphinxDirective):
    """Insert a section with a table of columns for each view or table."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        kind = directives.choice(self.arguments[0], ("tables", "views"))
        described = describe_tables() if kind == "tables" else describe_views()
        return [self._section(name, rows) for name, rows in described.items()]

    def _section(self, name: str, rows: list[Row]) -> nodes.Node:
        section = nodes.section(ids=[f"schema-{name.replace('_', '-')}"])
        section += nodes.title(text=name)
        table = nodes.table(classes=["colwidths-auto"])
        group = nodes.tgroup(cols=3)
        group += [nodes.colspec(colwidth=1) for _ in range(3)]
        head, body = nodes.thead(), nodes.tbody()
        head += _row(("column", "type", "meaning"), nodes.strong)
        body += [_row(row, nodes.literal) for row in rows]
        group += [head, body]
        table += group
        section += table
        return section


def _row(texts: Row, first_as: Any) -> nodes.row:
    row = nodes.row()
    for index, text in enumerate(texts):
        paragraph = nodes.paragraph()
        paragraph += first_as(text=text) if index == 0 else nodes.Text(text)
        row += nodes.entry("", paragraph)
    return row


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("schema-reference", SchemaReference)
    return {"parallel_read_safe": True}
