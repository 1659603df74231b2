"""A page that shows who holds keys and who waits for them, live: one ASGI application to mount anywhere.

``page`` is the application, ``looking`` looks at the engine for all who watch, ``history`` remembers what
happened in this process, and ``status.html`` is all that a browser gets. See docs/monitoring.md.
"""

from .page import StatusPage

__all__ = ["StatusPage"]
