"""`holdfast bench`: runs the benchmarks that this machine can run, and reports them.

catalog         all benchmarks: script, requirements, peers, expected time
ability         which of them can run here, and beside which peers
running         runs them, each in a process of its own
document        the report: tables and rows, its JSON, comparison with peers
reading         reads result files of every form into a report
comparing       compares two reports: changes beyond noise
page            a report as one HTML file
plots           its SVG plots
markdown        a report as Markdown
phrases         numbers as text, the same in terminal, page and Markdown
"""
