"""The stages of a sample: find candidates, draw, lay out and build the arrays of a batch."""
