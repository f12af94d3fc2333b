"""A loaded pipeline: its stages, settings, results and progress.

pipeline        Pipeline and Pipeline.load: the public object
call            one call of a pipeline: runs the stages, measures, records
stages          the three stages, and the base class of a model family
families/       FLUX, SDXL and Wan as declarations: one module each
settings        what to draw, checked against the limits of the model
result          frames, settings and cost of a run
progress        progress events and listeners
live_runs       loads and runs in progress in this process; stops them
"""
