"""The command line `expdb VERB`, with one module per group of verbs."""

from expdb.cli import data, demo, upkeep
from expdb.cli.main import main

__all__ = ["data", "demo", "main", "upkeep"]
