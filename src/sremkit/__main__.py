"""`python -m sremkit` is the command `srem`."""

import sys

from sremkit.cli.main import main

sys.exit(main())
