"""One frozen snapshot of the machine and of Holdfast's processes on it.

snapshot        the dataclasses of a snapshot and their JSON
machine         memory of the machine, its NUMA nodes and its GPUs
nvml            memory and load of NVIDIA GPUs
process         this process: memory, pools, tags, models, run, leaks
models          models loaded in this process, whoever keeps them
min_budget      the smallest budget that the models of a group can run in
prompts         the prompt that ComfyUI runs in this process
process_names   name, start time and RSS of any process
sources         safe access to modules that may not be imported
"""
