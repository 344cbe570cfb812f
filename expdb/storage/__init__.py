"""Write, find and read experience with SQL and Arrow. Nothing here uses random numbers."""
