"""What differs from database to database, a module each."""
