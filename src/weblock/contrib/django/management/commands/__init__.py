"""Management commands: a file for each."""
