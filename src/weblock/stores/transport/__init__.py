"""How engines reach their servers: what two or more of them need is written once, here.

- ``engine``: how such an engine begins, begins anew in a forked child, and ends.
- ``pool``: connections for threads, and for the tasks of event loops.
- ``loops``: what belongs to one event loop each. ``turns``: permits, which no signal handler takes for good.
- ``polling``: how to wait for several sockets. ``sending``: requests to several servers at once.
- ``listener``: the thread that listens for notifications on a connection of its own.
- ``backoff``: growing pauses, with jitter.
- ``options``: the options in the query of an engine's URL.
- ``unfit``: the error for a server that cannot be used, the text for any error, and a server that does not
  answer, which delays each of many callers only once.
"""
