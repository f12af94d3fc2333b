"""The memory profiler: record what happens to memory, then report, draw or export it.

profiler          `memory_profiler`, `enable_memory_profiling`
recorder          `Recorder`: events of pools, NumPy and torch on one time axis
script            runs a Python program under a recorder
samples           a thread that samples series such as resident memory
torch_cuda_trace  torch's CUDA memory history, merged into a recording
recording         `Recording`, the document: events, tables, series, and its file
lifetimes         bytes alive after each event; reserved ranges; names of source lines
report            the peak, who held it, what was left
timeline          bytes over time, as series, a text chart or a picture
page              the interactive HTML page (`assets/` has its script and style)
diff              two recordings compared by source line
export            Perfetto traces and collapsed stacks
torch_snapshot    torch's memory snapshots, read and written
"""
