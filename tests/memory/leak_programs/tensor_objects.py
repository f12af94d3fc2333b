"""The package's own tensors: one in a list, one by name."""

from holdfast import check_memory_leaks, tensor

KEPT = []


def work():
    named = tensor([1.0, 2.0])
    KEPT.append(tensor([1.0] * 100))  # leak: 400
    return check_memory_leaks(), named.tolist()


LEAKS = work()[0]
