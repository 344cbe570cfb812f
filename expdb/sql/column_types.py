"""Types of columns, and the metadata that all tables belong to."""

import sqlalchemy as sa

Integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Real: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")
Flag = sa.Boolean().with_variant(sa.Integer(), "sqlite")
Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
Blob = sa.LargeBinary()

metadata = sa.MetaData()
