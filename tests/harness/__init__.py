"""How tests are run: what the command prints, and which worker gets which file.

report      one line for each file, failures at once, a summary
scheduling  files for the workers of pytest-xdist; a crash costs one test
ordering    which tests come first, and `--shuffle SEED`
"""
