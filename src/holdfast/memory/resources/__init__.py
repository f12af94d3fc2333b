"""Where memory comes from. A resource allocates and frees by address; adaptors wrap a resource.

resource        the `Resource` protocol; `Host`, `Numa`, `Pinned` and `Virtual` memory
adaptors        `Limit`, `Statistics`, `Tracking`: resources that wrap another one
torch_cuda      `Cuda`, from torch's caching allocator, and torch's own statistics
opencl          memory of an OpenCL device, as buffers or shared virtual memory
opencl_devices  OpenCL devices: list, open, detect that one was lost
"""
