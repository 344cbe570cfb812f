"""Databases: connections, transactions, migrations and queries. Chunks are opaque bytes here."""
