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

SYSTEM = ("step", "reward", "terminated", "truncated")  # columns of every chunk, not fields


def upgrade() -> None:
    op.add_column("signatures", sa.Column("fields", Text, nullable=False, server_default=""))
    op.add_column("signatures", sa.Column("crc", Integer, nullable=False, server_default="0"))
    table = sa.table("signatures", *map(sa.column, ("buffer_id", "id", "schema", "fields", "crc")))
    connection = op.get_bind()
    for buffer_id, id, schema in connection.execute(
        sa.select(table.c.buffer_id, table.c.id, table.c.schema)
    ).all():
        try:
            fields = json.dumps(_fields(schema))
        except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
            raise ValueError(
                f"signature {id} of buffer {buffer_id} cannot be read ({error}): restore a backup"
            ) from None
        crc = zlib.crc32(fields.encode(), zlib.crc32(schema))
        connection.execute(
            sa.update(table)
            .where(table.c.buffer_id == buffer_id, table.c.id == id)
            .values(fields=fields, crc=crc)
        )


def _fields(schema: bytes) -> dict[str, list]:
    found = pa.ipc.read_schema(pa.py_buffer(schema))
    return {
        field.name: json.loads(field.metadata[b"expdb.field"])
        for field in found
        if field.name not in SYSTEM
    }


def downgrade() -> None:
    op.drop_column("signatures", "crc")
    op.drop_column("signatures", "fields")
