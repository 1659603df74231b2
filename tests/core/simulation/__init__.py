"""The simulator: a third runtime, which steps the core over virtual clocks and a bad network.

One seed is one schedule: a ``Swarm`` of faults and rates, a ``World`` of true time, an engine, and
processes whose attempts at keys are checked against the truth after every event.
"""
