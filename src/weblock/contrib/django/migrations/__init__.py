"""The migrations: permissions, and the tables of fences and of stored answers."""
