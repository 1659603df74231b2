"""The differences between operating systems: forks, threads, and waiting for sockets."""
