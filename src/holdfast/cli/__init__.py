"""The `holdfast` command: one module for each sub-command, imported when it is called.

There are more than 16 modules because there are 16 commands. The docstring of a command's module is
its help.

    main            finds and runs the sub-command; errors as text and exit status
    parsing         argument parsers with examples in their help
    tree            the parser of all commands, and what may be typed for each argument
    files           files named on the command line
    tables          text and tables on standard output
    progress        bars and status lines on standard error
    drawing         options that `run` and `batch` share
    run             draw a picture or a video
    batch           draw many prompts of a file
    fit             predict whether a model fits, and its speed
    pack            pack a model without losing a bit, and restore it
    topo            show the machine
    mem             record memory, report on it, replay it
    svm             shared virtual memory
    device          the torch device and its coverage
    tune            tune OpenCL kernels
    port            ports of models to XLA
    comfy           install and check the ComfyUI nodes
    doctor          check this installation
    top             the dashboard in the terminal
    serve           the dashboard in the browser
    bench           benchmarks and their report
    completion      install shell completion; answer its questions
    shells          completion scripts for bash, zsh and fish, written by shtab
"""
