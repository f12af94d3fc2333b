"""A made-up machine with several NUMA nodes, for tests that need one."""
