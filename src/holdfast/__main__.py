"""`python -m holdfast` is the `holdfast` command."""

import sys

from holdfast.cli.main import main

sys.exit(main())
