"""All private names of asyncio that weblock uses; ``tests/test_private_names.py`` notices when one goes away."""

from __future__ import annotations

import asyncio
from typing import Final

from .._platform.loops import running

running_loop: Final = getattr(asyncio, "_get_running_loop", running)
"""Returns the event loop that runs in this thread, or ``None``.

Outside a loop the public function raises, which takes several times as long, and the blocking face asks often.
"""
