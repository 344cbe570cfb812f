"""Check, copy and measure a database."""
