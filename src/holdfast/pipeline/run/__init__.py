"""A loaded pipeline: its stages, settings, results and progress.

pipeline        Pipeline and Pipeline.load: the public object
call            one call of a pipeline: runs the stages, measures, records
stages          protocols of the three stages and of a model family
families        FLUX, SDXL and Wan: one module each
settings        what to draw, checked against the limits of the model
result          frames, settings and cost of a run
progress        progress events and listeners
live_runs       loads and runs in progress in this process; stops them
"""
