"""Which weight is split along which dimension: by the user, by diffusers, by what the module is."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
pytest.importorskip("jax")

from jax.sharding import PartitionSpec as P  # noqa: E402
from torch import nn  # noqa: E402

from holdfast.base.errors import BadInput  # noqa: E402
from holdfast.xla import tiny  # noqa: E402
from holdfast.xla.cluster.mesh import make_mesh  # noqa: E402
from holdfast.xla.sharding.rules import Rules, rules_for  # noqa: E402

pytestmark = pytest.mark.xla

COLUMN, ROW, WHOLE = P("tp", None), P(None, "tp"), P()
DEPTH = {
    "FluxTransformer2DModel": {"num_layers": 2, "num_single_layers": 2, "guidance_embeds": True},
    "Flux2Transformer2DModel": {"num_layers": 2, "num_single_layers": 2},
    "QwenImageTransformer2DModel": {"num_layers": 2},
    "QwenImage21Transformer2DModel": {"num_layers": 2},
    "WanTransformer3DModel": {"num_layers": 2},
}


def on_meta(name: str) -> Any:
    """A model of real width with two blocks of each kind, and no weights."""
    with torch.device("meta"):
        return getattr(diffusers, name)(**DEPTH[name])


def in_blocks(*layers: nn.Module, **named: nn.Module) -> nn.ModuleDict:
    """What is in the model itself leads into its blocks, so layers are put one below."""
    block = nn.Module()
    for name, layer in {**{f"layer{i}": one for i, one in enumerate(layers)}, **named}.items():
        block.add_module(name, layer)
    return nn.ModuleDict({"block": block})


def seen(rules: Rules) -> dict[str, Any]:
    return {name.removeprefix("block."): rule.spec for name, rule in rules.items()}


PLANNED = [name for name in DEPTH if name != "WanTransformer3DModel"]


@pytest.mark.parametrize("name", PLANNED)
def test_what_is_derived_agrees_with_the_plan_of_diffusers(name: str) -> None:
    module = on_meta(name)
    planned = rules_for(module)
    module._tp_plan = None
    derived = rules_for(module)
    ruled = [one for one, rule in planned.items() if rule.reason.startswith("_tp_plan")]
    assert len([one for one in ruled if ".0." in one]) >= len(type(module)._tp_plan)
    assert {one: derived[one].spec for one in ruled} == {one: planned[one].spec for one in ruled}
    assert not any(rule.reason.startswith("_tp_plan") for rule in derived.values())


def test_a_plan_says_why_and_leaves_the_rest_to_be_derived() -> None:
    rules = rules_for(on_meta("FluxTransformer2DModel"))
    block = "single_transformer_blocks.1"
    assert rules[f"{block}.attn.to_q.weight"].reason == "_tp_plan: colwise"
    assert rules[f"{block}.attn.to_q.bias"].spec == P("tp")
    assert rules[f"{block}.proj_out.weight"].reason == "_tp_plan: PackedRowwiseParallel"
    assert rules[f"{block}.proj_out.weight"].spec == ROW
    assert rules[f"{block}.proj_out.bias"].spec == WHOLE
    assert rules[f"{block}.norm.linear.weight"].reason == "derived: row of no pair"
    assert rules[f"{block}.norm.linear.weight"].spec == ROW
    assert rules["x_embedder.weight"].reason == "replicated: small"


def test_every_weight_and_buffer_has_a_rule_and_equal_blocks_have_equal_ones() -> None:
    module = on_meta("WanTransformer3DModel")
    rules = rules_for(module)
    names = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    assert list(rules) == names
    first = {name[9:]: rule for name, rule in rules.items() if name.startswith("blocks.0.")}
    second = {name[9:]: rule for name, rule in rules.items() if name.startswith("blocks.1.")}
    assert first == second
    assert rules["rope.freqs_cos"].reason == "replicated: a buffer"
    # The model adds the time embedding to a table, where a row's split would spread.
    assert rules["condition_embedder.time_proj.weight"].reason == "derived: column of no pair"


@pytest.mark.parametrize("name", ["transformers:T5EncoderModel", "transformers:UMT5EncoderModel"])
def test_t5_is_split_into_pairs(name: str) -> None:
    rules = rules_for(tiny.make(name).module)
    block = "encoder.block.0.layer"
    for leaf in ("0.SelfAttention.q", "0.SelfAttention.k", "0.SelfAttention.v"):
        assert rules[f"{block}.{leaf}.weight"].spec == COLUMN
    assert rules[f"{block}.0.SelfAttention.o.weight"].spec == ROW
    assert rules[f"{block}.1.DenseReluDense.wi_0.weight"].spec == COLUMN
    assert rules[f"{block}.1.DenseReluDense.wo.weight"].spec == ROW


def test_narrow_keys_are_columns_and_wide_outputs_are_rows() -> None:
    attention = in_blocks(
        to_q=nn.Linear(64, 64, bias=False),
        to_k=nn.Linear(64, 16),
        to_out=nn.ModuleList([nn.Linear(32, 64)]),
        to_gate=nn.Linear(64, 8, bias=False),
    )
    assert seen(rules_for(attention)) == {
        "to_q.weight": COLUMN,
        "to_k.weight": COLUMN,
        "to_k.bias": P("tp"),
        "to_out.0.weight": ROW,
        "to_out.0.bias": WHOLE,
        "to_gate.weight": COLUMN,
    }


def test_a_feed_forward_is_a_pair_also_where_its_first_layer_is_in_a_module_of_its_own() -> None:
    module = diffusers.models.attention.FeedForward(16, mult=4)
    assert seen(rules_for(nn.ModuleDict({"block": module}))) == {
        "net.0.proj.weight": COLUMN,
        "net.0.proj.bias": P("tp"),
        "net.2.weight": ROW,
        "net.2.bias": WHOLE,
    }


def test_convolutions_norms_and_small_tables_are_whole() -> None:
    module = in_blocks(nn.Conv2d(8, 16, 3), nn.LayerNorm(16), nn.Embedding(32, 8))
    reasons = [rule.reason for rule in rules_for(module).values()]
    assert reasons == [
        "replicated: a convolution",
        *["replicated: a vector"] * 3,
        "replicated: small",
    ]


def test_a_convolution_of_one_pixel_is_a_linear() -> None:
    module = in_blocks(nn.Conv2d(16, 64, 1), nn.Conv2d(64, 16, 1, bias=False))
    assert seen(rules_for(module)) == {
        "layer0.weight": P("tp", None, None, None),
        "layer0.bias": P("tp"),
        "layer1.weight": P(None, "tp", None, None),
    }


def test_large_embeddings_are_split_along_their_width_and_large_tables_along_the_longest() -> None:
    with torch.device("meta"):
        module = nn.ModuleDict({"words": nn.Embedding(32100, 512), "odd": nn.Embedding(80000, 33)})
        module["experts"] = nn.Module()
        module["experts"].up = nn.Parameter(torch.empty(4, 512, 2048))
    assert seen(rules_for(module)) == {
        "words.weight": P(None, "tp"),
        "odd.weight": P("tp", None),
        "experts.up": P(None, None, "tp"),
    }


def test_what_does_not_come_out_even_is_turned_or_left_whole_with_the_reason() -> None:
    rules = rules_for(in_blocks(q=nn.Linear(16, 12), k=nn.Linear(12, 12, bias=False)))
    assert rules["block.q.weight"].spec == ROW
    assert rules["block.q.weight"].reason == "derived: column; turned, 12 is not divisible by 8"
    assert rules["block.q.bias"].reason == (
        "replicated: the bias of a layer whose outputs are whole"
    )
    assert rules["block.k.weight"].reason == "replicated: nothing of 12 x 12 is divisible by 8"


def test_tied_weights_have_one_rule() -> None:
    module = in_blocks(nn.Linear(8, 16, bias=False), nn.Linear(8, 16, bias=False))
    block: Any = module["block"]
    block.layer1.weight = block.layer0.weight
    assert list(rules_for(module)) == ["block.layer0.weight"]


def test_the_users_rules_come_first_and_the_first_that_matches_wins() -> None:
    user = {
        r".*attn\.to_q\.weight": (None, "tp"),
        r".*\.attn\..*\.weight": P("tp", None),
        r"attn": P("tp"),  # matches nothing: no name begins so
    }
    rules = rules_for(on_meta("FluxTransformer2DModel"), user, size=4)
    attention = "transformer_blocks.0.attn"
    assert rules[f"{attention}.to_q.weight"].spec == ROW
    assert rules[f"{attention}.to_q.weight"].reason == r"user: .*attn\.to_q\.weight"
    assert rules[f"{attention}.to_out.0.weight"].spec == COLUMN
    # What a rule says of dimensions that a weight does not have is not meant.
    assert rules[f"{attention}.norm_q.weight"].spec == P("tp")
    assert rules[f"{attention}.to_out.0.bias"].reason == (
        "replicated: the bias of a layer whose outputs are whole"
    )


def test_rules_can_be_asked_for_a_mesh_of_two_axes() -> None:
    mesh = make_mesh(shape={"dp": 2, "tp": 4})
    rules = rules_for(in_blocks(q=nn.Linear(16, 16)), {".*weight": (("dp", "tp"),)}, mesh=mesh)
    assert rules.sizes == {"dp": 2, "tp": 4}
    assert rules.specs == {"block.q.weight": P(("dp", "tp")), "block.q.bias": P("tp")}


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (("tp",), "12 is not divisible by 8"),
        ((None, None, "tp"), "the shape has 2 of its 3 dimensions"),
        ((None, "dp"), "there is no axis 'dp'"),
        (("tp", "tp"), "'tp' is there twice"),
    ],
)
def test_a_rule_of_the_user_that_does_not_fit_is_an_error(spec: Any, problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        rules_for(nn.Linear(16, 12), {"wei": spec})
    assert str(caught.value) == (
        f"cannot split 'weight' of shape (12, 16) by {P(*spec)}: {problem}\n"
        "  expected: equal parts over the mesh of tp=8\n"
        "  try: a rule for it before the others: {'weight': ()} leaves it whole"
    )


def test_what_is_no_rule_is_an_error() -> None:
    with pytest.raises(BadInput) as caught:
        rules_for(nn.Linear(8, 8), {"(": ()})
    assert str(caught.value) == (
        "a sharding rule is no regular expression: '(': missing ), unterminated subpattern at "
        "position 0\n"
        r"  expected: one such as r'.*\.attn\.to_q\.weight'"
    )
    for spec in ((0,), (["tp"],)):
        with pytest.raises(BadInput) as caught:
            rules_for(nn.Linear(8, 8), {".*": spec})
        assert str(caught.value).startswith(f"the sharding rule '.*' is {spec!r}\n")
    with pytest.raises(BadInput) as caught:
        rules_for(nn.Linear(8, 8), {".*": "tp"})
    assert str(caught.value) == (
        "the sharding rule '.*' is 'tp'\n"
        '  expected: a PartitionSpec or a tuple, such as ("tp", None)'
    )
    with pytest.raises(BadInput) as caught:
        rules_for(nn.Linear(8, 8), axis="model", mesh=make_mesh())
    assert str(caught.value) == (
        "weights cannot be split along 'model': the mesh has tp=8\n"
        "  expected: a mesh with an axis 'model', such as make_mesh(axes='model')"
    )
