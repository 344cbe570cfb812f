"""The types of a signature's fields as JSON beside its Arrow schema, with a checksum of both.

Until now they were in the metadata of the schema, which every reader had to take apart.
"""

import json
import zlib

import pyarrow as pa
import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

Integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
COLUMNS = ("buffer_id", "id", "schema", "fields", "crc")

SYSTEM = ("step", "reward", "terminated", "truncated")  # columns of every chunk, not fields


def upgrade() -> None:
    """Add the columns.

    They have no defaults: an older expdb, which has the database open and does not know them, is to
    fail when it stores a signature, and not to leave one that cannot be read.
    """
    connection = op.get_bind()
    sqlite = connection.dialect.name == "sqlite"
    known = sa.table("signatures", *map(sa.column, COLUMNS[:3]))
    rows = [_with_fields(*row) for row in connection.execute(sa.select(known))]
    if sqlite:  # which adds no column that is NOT NULL and has no default
        op.drop_table("signatures")
        op.create_table(
            "signatures",
            sa.Column("buffer_id", Integer, primary_key=True),
            sa.Column("id", Integer, primary_key=True),
            sa.Column("schema", sa.LargeBinary(), nullable=False),
            sa.Column("fields", Text, nullable=False),
            sa.Column("crc", Integer, nullable=False),
            sqlite_strict=True,
            sqlite_with_rowid=False,
        )
    else:
        op.add_column("signatures", sa.Column("fields", Text))
        op.add_column("signatures", sa.Column("crc", Integer))
        op.execute("DELETE FROM signatures")
    if rows:
        connection.execute(sa.insert(sa.table("signatures", *map(sa.column, COLUMNS))), rows)
    if not sqlite:
        op.alter_column("signatures", "fields", nullable=False)
        op.alter_column("signatures", "crc", nullable=False)


def _with_fields(buffer_id: int, id: int, schema: bytes) -> dict[str, object]:
    try:
        found = pa.ipc.read_schema(pa.py_buffer(schema))
        fields = json.dumps(
            {
                field.name: json.loads(field.metadata[b"expdb.field"])
                for field in found
                if field.name not in SYSTEM
            }
        )
    except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
        raise ValueError(
            f"signature {id} of buffer {buffer_id} cannot be read ({error}): restore a backup"
        ) from None
    crc = zlib.crc32(fields.encode(), zlib.crc32(schema))
    return dict(zip(COLUMNS, (buffer_id, id, schema, fields, crc), strict=True))


def downgrade() -> None:
    op.drop_column("signatures", "crc")
    op.drop_column("signatures", "fields")
