"""Web pages over a database: `expdb serve`.

The pages read through the public interface, with a handle that cannot write. `app.py` builds the
application, `guard.py` decides which requests it answers, `views/` has one module per page, and
`render.py` turns stored values into text and HTML.
"""
