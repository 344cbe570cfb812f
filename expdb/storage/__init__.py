"""SQL and Arrow: how experience is written, found and read. Knows no chance."""
