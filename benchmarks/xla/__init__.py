"""Parts of bench_xla.py, each run in a process of its own."""
