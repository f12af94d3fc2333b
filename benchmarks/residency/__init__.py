"""The parts of bench_residency.py: shapes, systems, cells, measuring, the record."""
