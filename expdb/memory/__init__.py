"""The steps of a buffer in arrays in memory. Only this package changes these arrays."""
