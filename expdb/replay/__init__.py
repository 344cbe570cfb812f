"""Chance: which steps a batch holds and what each becomes. Knows NumPy, and no SQL."""
