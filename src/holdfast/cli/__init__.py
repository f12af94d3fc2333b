"""The `holdfast` command: one module for each sub-command, loaded when it is called."""
