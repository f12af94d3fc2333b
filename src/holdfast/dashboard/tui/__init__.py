"""`holdfast top`: what is live on this machine, in a terminal.

Only app, acts, details, dialogs and table import Textual; the other files serve `--once` too.
"""
