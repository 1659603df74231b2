"""The simulator: the protocol stepped over virtual clocks and a network that loses messages."""
