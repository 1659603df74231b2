"""Where tests that see what a user sees keep pictures of it."""

from __future__ import annotations

import os

PICTURES = os.environ.get("WEBLOCK_PICTURES", "")
"""A folder for the pictures of the docs: docs/images."""
