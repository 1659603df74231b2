"""Signals of what happens to locks: one for each event of ``weblock.events``.

``sender`` is ``Locks`` or ``AsyncLocks``. Every signal has the ``alias`` and the ``event``.
Receivers are called in a thread of their own, one after the other, so a slow one delays no lock;
one that raises is logged, and changes nothing.
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
not_renewed = Signal()
