"""What ``migrate`` makes: permissions, and the table of fences."""
