"""`python -m expdb` is the command line."""

from expdb.cli import main

main(prog_name="expdb")
