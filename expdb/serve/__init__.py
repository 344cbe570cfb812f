"""The web pages of a database: `expdb serve`.

The pages use the public interface and a read-only handle. `app.py` builds the
application, `guard.py` decides which requests it answers, `views/` has one module per page, and
`render.py` turns stored values into text and HTML.
"""
