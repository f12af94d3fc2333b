"""Matrix products, linear algebra and Fourier transforms.

Modules:

    contract        outer, inner, tensordot, kron, chains of products, einsum
    distance        distances of pairs and between all rows
    fft             Fourier transforms
    linalg          factorizations, solvers, determinants: ATen's ops
    products        matrix products, addmm, linear, traces
    solve           inverses, solvers, ranks: functions made of `linalg`'s ops
"""
