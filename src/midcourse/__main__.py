"""`python -m midcourse`: the command line without its script."""

from midcourse.cli import main

main()
