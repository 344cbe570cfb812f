"""The command line `expdb COMMAND`, with one module per group of commands."""

from expdb.cli import data, demo, training, upkeep, watch
from expdb.cli.main import main

__all__ = ["data", "demo", "main", "training", "upkeep", "watch"]
