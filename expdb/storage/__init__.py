"""Write, find and read experience with SQL and Arrow."""
