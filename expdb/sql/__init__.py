"""Databases: connect, begin, ask, migrate, compile queries. Knows no chunks."""
