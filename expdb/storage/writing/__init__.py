"""Write steps: from values to rows."""
