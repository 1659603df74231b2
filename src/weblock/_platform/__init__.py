"""What operating systems do differently: forks, threads, and waiting for sockets."""
