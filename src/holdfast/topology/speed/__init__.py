"""The stop-watches behind `topology.measure`: host memory, GPU links, and what was kept."""
