"""What holds for all tests."""

from weblock.stores.file import machines

# Tests run in containers too, where file:// warns of it once in a process: some test would be the first.
machines.told.append("a machine of tests")
