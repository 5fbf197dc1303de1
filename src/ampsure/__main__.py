"""`python -m ampsure`: the command line."""

from ampsure.cli import main

main()
