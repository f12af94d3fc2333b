"""Show what Holdfast's processes and the machine do: snapshots, terminal, web page, benchmarks.

snapshot/       one frozen snapshot of machine and processes, and how it is taken
ipc/            sockets by which a process offers its snapshot and takes requests
tui/            `holdfast top`: the terminal dashboard
web/            `holdfast serve`: the web dashboard, its API and metrics
bench/          `holdfast bench`: runs benchmarks and reports results
"""
