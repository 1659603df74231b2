"""The lock protocol: decisions, with no I/O, no clock, no thread and no framework.

Read in this order: ``table`` (what the engine knows about a key, and what may happen to it),
``ports`` (what the protocol needs of an engine and of a runtime), ``holding`` (what a holder
knows), ``acquiring`` (how a key is acquired and released), ``keeping`` (how leases are kept).
"""
