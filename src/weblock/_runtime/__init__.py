"""How the protocol runs: blocking, on asyncio, and the keeper's thread."""
