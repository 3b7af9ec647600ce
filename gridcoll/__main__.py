"""``python -m gridcoll``: the same commands as ``gridcoll``."""

from gridcoll.cli import main

main()
