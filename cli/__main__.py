"""``python -m cli``."""

import sys

from cli.shell.program import main

sys.exit(main())
