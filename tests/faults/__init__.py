"""Real faults on real servers, while sixteen workers in four processes want one key."""
