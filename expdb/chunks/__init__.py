"""Convert Python values to Arrow record-batch messages and back. This package uses no SQL."""
