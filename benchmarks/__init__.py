"""weblock's engines beside other locks, in one run, as ratios. See ``docs/dev/benchmarks.md``."""
