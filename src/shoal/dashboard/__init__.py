"""The page that shows runs in a browser. Training does not need it: it asks, reads files, and can be killed.

    sources   what there is to know of a run: asked of its coordinator, read from its logs (logs_reader)
    facts     from that to what the page shows; timeline and metrics likewise. Pure.
    guard     who may ask for what. Pure.
    app       the routes; server runs them; process is what `shoal run --dashboard` starts

starlette and uvicorn are imported by `app` and `server` alone.
"""
