"""`holdfast top`: what is live on this machine, in a terminal.

Only app, acts, details, dialogs and table import Textual; the other modules serve `--once` too.

    app             the screen: layout, sorting, keys that change what is shown
    acts            keys that act on the selected process
    details         the lower half: tabs of the selected process
    dialogs         windows that ask before something is done
    table           widgets that keep what did not change
    looking         threads that take snapshots and run requests
    session         all processes seen so far, with their history
    history         bounded samples of memory over time
    timeline        everything seen so far as JSON, CSV or an HTML page
    machine         lines for RAM, NUMA nodes and GPUs
    rows            the table of processes: columns, cells, sorting
    tables          tables of one process: devices, pools, models, leaks …
    charts          memory of a process as a chart of block characters
    words           values as short text: sizes, bars, sparklines, stages
    once            `holdfast top --once`: one snapshot as text
"""
