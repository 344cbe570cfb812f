"""Internals of a handle, for tests that change a database in ways expdb does not offer."""


def writing(db):
    """Return a context with a session in a write transaction."""
    return db._engine.writing()


def reading(db):
    """Return a context with a session that sees one snapshot."""
    return db._engine.reading()


def dialect_of(db):
    """Return the SQL dialect of the database."""
    return db._engine.dialect


def store_of(buffer):
    """Return the store of a buffer, with its fields and the decoders of its chunks."""
    return buffer._store


def engine_of(db):
    """Return the engine of a handle, which opens its sessions."""
    return db._engine


def report_now(buffer):
    """Report the activity of a handle and measure the buffer, as handles do at intervals."""
    buffer._reporter.report()


def evict_at_next_write(buffer):
    """Let the next write evict, as if the interval between two evictions had passed."""
    buffer._retention.next_look = 0.0
