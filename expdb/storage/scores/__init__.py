"""Scores of steps and episodes: check, record and read them."""
