"""Completion scripts, one module for each shell.

Each module has `script(tree) -> str`, `path(home, environ) -> Path`, where the script belongs, and
`BY_HAND`, what else the user has to do.

    bash            bash 3.2 or newer
    zsh             zsh 5.0 or newer
    fish            fish 3.0 or newer
"""
