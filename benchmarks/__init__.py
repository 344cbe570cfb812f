"""Measured against the bare driver, alternating in one run: `python3 dev.py bench`."""
