"""Find matching steps and read their values."""
