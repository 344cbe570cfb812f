"""What is behind a handle, for tests that do to a database what no method of expdb does."""


def writing(db):
    """Return a context with a session in a transaction, as writers have."""
    return db._engine.writing()


def reading(db):
    """Return a context with a session that sees one snapshot."""
    return db._engine.reading()


def dialect_of(db):
    """Return what differs from database to database."""
    return db._engine.dialect


def store_of(buffer):
    """Return what a process knows of a buffer: its fields, and how to decode its chunks."""
    return buffer._store
