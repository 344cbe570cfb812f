"""Databases: connections, transactions, migrations and compiled queries. Chunks are opaque here."""
