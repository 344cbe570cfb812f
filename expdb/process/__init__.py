"""Locks, threads, forks, exits, temporary folders and the liveness of processes."""
