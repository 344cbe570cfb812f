"""What concerns the process: locks, forks, exit, other processes."""
