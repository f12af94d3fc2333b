"""Kernels for matrices, and transforms and distances made of them.

Products use NumPy's BLAS, factorizations LAPACK, from SciPy or NumPy.

    products   matrix products, addmm and its kin, linear, triangles, trace
    linalg     LU, solve, inverse, determinant; batches of matrices
    factor     Cholesky, LDL, QR, eigenvalues, SVD, least squares, matrix exponential
    fft        Fourier transforms
    distance   pairwise distances: cdist and pdist
"""
