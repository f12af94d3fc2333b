"""Matrix products.

products       the ops: matmul, addmm, bmm, linear …
gemm           batched products: choice of kernel and parameters
gemm_search    search for the fastest parameters on a device
clblast        CLBlast, if installed
quantize       fake quantization, int8 products and convolutions
distance       cdist, pdist
"""
