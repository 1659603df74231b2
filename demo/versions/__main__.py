"""``python -m demo.versions``: the same as ``scripts/demo --versions``."""

from __future__ import annotations

import sys

from demo.__main__ import main

sys.argv.insert(1, "--versions")
sys.exit(main())
