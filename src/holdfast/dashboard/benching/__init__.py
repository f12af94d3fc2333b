"""`holdfast bench`: the benchmark tables that can run here, in one report."""
