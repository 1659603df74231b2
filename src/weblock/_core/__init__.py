"""The lock protocol: decisions, with no I/O, no clock, no thread and no framework.

Read in this order: ``table`` (what the engine knows about a key, and what may happen to it),
``ports`` (what the protocol needs of an engine and of a runtime), ``holding`` (what a holder
knows), ``acquiring`` (how a key is acquired and released), ``keeping`` (how leases and places in
queues are kept alive), ``reporting`` (events, and how an engine fails), ``moving`` (how a lease goes
to another process).
"""
