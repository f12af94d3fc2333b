"""Denoising inside one compiled step: a scheduler as a table, guidance, the loop.

table = table_of(scheduler, 20)                          # torch is used here and nowhere after
step = make_step(model, table, latents_name="hidden_states", time_name="timestep")
latents = Sampler(step).run(weights, noise * table.init_noise_sigma, table, Conditioning(cond))
"""

from holdfast.xla.sampling.loop import Sampler, run
from holdfast.xla.sampling.probing import table_of
from holdfast.xla.sampling.step import Conditioning, guided, make_step, per_sample
from holdfast.xla.sampling.table import History, Row, State, Table

__all__ = [
    "Conditioning",
    "History",
    "Row",
    "Sampler",
    "State",
    "Table",
    "guided",
    "make_step",
    "per_sample",
    "run",
    "table_of",
]
