"""`python -m eagle_repro`: the command line."""

import sys

from eagle_repro.cli import main

sys.exit(main())
