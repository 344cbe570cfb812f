"""Differences between databases, one folder per database."""
