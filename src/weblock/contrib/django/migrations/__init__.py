"""What ``migrate`` makes: permissions, and no table."""
