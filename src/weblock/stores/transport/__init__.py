"""How engines reach their servers: what two or more of them need is written once, here.

- ``settings``: the options in the query of an engine's URL; how an engine with a server begins, begins anew in
  a forked child, and ends.
- ``pool``: connections for threads, and for the tasks of event loops. No signal handler takes a permit for good.
- ``loops``: what belongs to one event loop each.
- ``sending``: requests to several servers at once.
- ``listener``: the thread that listens for notifications on a connection of its own.
- ``failures``: a server that cannot be used: the error, its text, growing pauses, and a server that does not
  answer, which delays each of many callers only once.
"""
