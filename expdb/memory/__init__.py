"""The rows of a buffer in arrays, kept current. The only code that changes them."""
