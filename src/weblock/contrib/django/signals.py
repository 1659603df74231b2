"""What happens to locks, told to whoever listens.

``sender`` is the class of the ``Locks``; every signal says the ``alias``. A receiver that fails is
logged, and changes nothing for the lock.

- ``acquired``: ``lease``, and ``waited``, in seconds.
- ``timed_out``: ``keys``, and the ``error``, a ``LockTimeout``.
- ``lost``: ``lease``. It is sent from a thread of its own, for the holder may be busy.
- ``released``: ``lease``, and ``held_for``, in seconds. Not for a lease that was lost before.
"""

from django.dispatch.dispatcher import Signal

acquired = Signal()
timed_out = Signal()
lost = Signal()
released = Signal()
