"""The command line `expdb COMMAND`, with one module per group of commands."""

from expdb.cli import data, demo, serving, training, transfer, upkeep, watch
from expdb.cli.main import main

__all__ = ["data", "demo", "main", "serving", "training", "transfer", "upkeep", "watch"]
