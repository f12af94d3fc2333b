"""Denoising inside one compiled step: a scheduler as a table, guidance, the loop.

table = table_of(scheduler, 20)                          # torch is used here and nowhere after
step = make_step(model, table, latents_name="hidden_states", time_name="timestep")
latents = Sampler(step).run(weights, noise * table.init_noise_sigma, table, Conditioning(cond))

    loop            the loop around a step
    probing         from a diffusers scheduler to its table
    step            model, guidance and scheduler as one function
    table           a scheduler as coefficients, and one step of it
"""

from holdfast.xla.sampling.loop import Sampler
from holdfast.xla.sampling.probing import table_of
from holdfast.xla.sampling.step import Conditioning, apply_guidance, make_step, per_sample
from holdfast.xla.sampling.table import History, SamplerState, Table, TableRow

__all__ = [
    "Conditioning",
    "History",
    "Sampler",
    "SamplerState",
    "Table",
    "TableRow",
    "apply_guidance",
    "make_step",
    "per_sample",
    "table_of",
]
