"""The migrations: permissions, and the table of fences."""
