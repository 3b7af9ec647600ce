"""``python -m gridcoll``: the same commands as ``gridcoll``."""

from gridcoll.cli import main

if __name__ == "__main__":
    main()
