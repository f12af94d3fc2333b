"""Scripts that make a shell complete the command line; one module for each shell.

Each has `script(tree) -> str` and `path(home, environ) -> Path`, where such a script belongs.
"""
