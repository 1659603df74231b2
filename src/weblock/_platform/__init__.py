"""What operating systems do differently, each in one module: forks, and waiting for sockets."""
