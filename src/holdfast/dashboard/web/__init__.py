"""What is live on this machine as a web page, with an API and metrics.

from holdfast.dashboard.web import serving
with serving(port=8765) as server:
    print(server.url_to_open)
"""

from __future__ import annotations

from holdfast.dashboard.web.server import Server, serving

__all__ = ["Server", "serving"]
