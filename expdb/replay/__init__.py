"""Samplers, units and rate limiters. They use NumPy only: no files, no SQL, no Arrow."""
