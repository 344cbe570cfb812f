"""What differs from database to database, a folder each."""
