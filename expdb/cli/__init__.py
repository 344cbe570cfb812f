"""The command line: `expdb VERB`, a file per group of verbs."""

from expdb.cli import data, upkeep
from expdb.cli.main import main

__all__ = ["data", "main", "upkeep"]
