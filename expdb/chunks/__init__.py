"""The Arrow format: Python values to record-batch messages and back. Knows no SQL."""
