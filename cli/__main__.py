"""``python -m cli``."""

import sys

from cli.program import main

sys.exit(main())
