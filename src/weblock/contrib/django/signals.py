"""What happens to locks, told to whoever listens: one signal for each event of ``weblock.events``.

``sender`` is ``Locks`` or ``AsyncLocks``. Every signal says the ``alias`` and the ``event``. Receivers
are called in a thread of their own, one after the other, so that a slow one holds up nobody; one
that fails is logged, and changes nothing for the lock.
"""

from django.dispatch.dispatcher import Signal

waiting = Signal()
acquired = Signal()
released = Signal()
at_risk = Signal()
lost = Signal()
forgotten = Signal()
timed_out = Signal()
refused = Signal()
gave_up = Signal()
unavailable = Signal()
available = Signal()
recovering = Signal()
failed_open = Signal()
forced = Signal()
