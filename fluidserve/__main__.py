"""``python -m fluidserve``."""

import sys

from fluidserve.cli import main

if __name__ == "__main__":
    sys.exit(main())
