"""``python -m harness`` is the same as the console script ``foretoken``."""

import sys

from harness.cli.main import main

sys.exit(main())
