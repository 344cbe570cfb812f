"""From the values of a step to its rows."""
