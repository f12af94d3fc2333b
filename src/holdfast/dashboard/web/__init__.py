"""`holdfast serve`: what is live on this machine as a web page, with an API and metrics.

from holdfast.dashboard.web import serving
with serving(port=8765) as server:
    print(server.url_to_open)

server          the listening socket and its thread; what is served is in `application`
application     HTTP: routes, middleware, headers, errors, static files
guard           who may connect: host, origin, token
table           all endpoints of the API
endpoints       what an endpoint is; reads and checks requests
answers         dataclasses of requests and answers
refusals        HTTP errors and their JSON
openapi         the OpenAPI document, made from the table
sources         answers from processes, machine and run history
workers         a bounded pool of threads for blocking work
feed            one snapshot loop for all listeners
events          server-sent events
history         values over time in bounded memory
metrics         a snapshot for Prometheus

Data: `static/`, the page: one JavaScript file for each view in `static/views/`.
"""

from __future__ import annotations

from holdfast.dashboard.web.server import Server, serving

__all__ = ["Server", "serving"]
