"""Options: from a command line and from Python, and what is refused."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import pytest

from holdfast.base.errors import BadInput
from holdfast.residency.model_management.rules import options
from holdfast.residency.model_management.rules.options import Options

# As the specification lists them, and the field each one sets.
SPECIFIED = {
    "--cpu": {"cpu": True},
    "--lowvram": {"lowvram": True},
    "--novram": {"novram": True},
    "--normalvram": {"normalvram": True},
    "--highvram": {"highvram": True},
    "--gpu-only": {"gpu_only": True},
    "--fp16-unet": {"fp16_unet": True},
    "--fp32-unet": {"fp32_unet": True},
    "--bf16-unet": {"bf16_unet": True},
    "--fp8-e4m3fn-unet": {"fp8_e4m3fn_unet": True},
    "--use-pytorch-cross-attention": {"use_pytorch_cross_attention": True},
    "--disable-xformers": {"disable_xformers": True},
    "--reserve-vram 1.5": {"reserve_vram": 1.5},
}
COMFYUI = {
    "--force-fp16": {"force_fp16": True},
    "--force-fp32": {"force_fp32": True},
    "--fp64-unet": {"fp64_unet": True},
    "--fp8_e4m3fn-unet": {"fp8_e4m3fn_unet": True},
    "--fp8_e5m2-unet": {"fp8_e5m2_unet": True},
    "--fp8_e8m0fnu-unet": {"fp8_e8m0fnu_unet": True},
    "--cpu-vae": {"cpu_vae": True},
    "--fp16-vae": {"fp16_vae": True},
    "--fp32-vae": {"fp32_vae": True},
    "--bf16-vae": {"bf16_vae": True},
    "--fp8_e4m3fn-text-enc": {"fp8_e4m3fn_text_enc": True},
    "--fp8-e5m2-text-enc": {"fp8_e5m2_text_enc": True},
    "--fp16-text-enc": {"fp16_text_enc": True},
    "--fp32-text-enc": {"fp32_text_enc": True},
    "--bf16-text-enc": {"bf16_text_enc": True},
    "--use-split-cross-attention": {"use_split_cross_attention": True},
    "--use-quad-cross-attention": {"use_quad_cross_attention": True},
    "--use-sage-attention": {"use_sage_attention": True},
    "--use-flash-attention": {"use_flash_attention": True},
    "--force-upcast-attention": {"force_upcast_attention": True},
    "--dont-upcast-attention": {"dont_upcast_attention": True},
    "--supports-fp8-compute": {"supports_fp8_compute": True},
    "--disable-smart-memory": {"disable_smart_memory": True},
    "--disable-pinned-memory": {"disable_pinned_memory": True},
    "--disable-async-offload": {"disable_async_offload": True},
    "--async-offload": {"async_offload": 2},
    "--async-offload 5": {"async_offload": 5},
    "--directml": {"directml": -1},
    "--directml 1": {"directml": 1},
    "--deterministic": {"deterministic": True},
    "--force-non-blocking": {"force_non_blocking": True},
    "--fast": {"fast": ("fp16_accumulation",)},
    "--fast fp16_accumulation": {"fast": ("fp16_accumulation",)},
}


@pytest.mark.parametrize(("line", "fields"), (SPECIFIED | COMFYUI).items())
def test_each_option_sets_its_field_and_no_other(line: str, fields: dict[str, Any]) -> None:
    assert options.parse(line.split()) == Options(**fields)


def test_every_field_can_be_set_from_a_command_line() -> None:
    reached = {name for fields in (SPECIFIED | COMFYUI).values() for name in fields}
    assert reached == {field.name for field in dataclasses.fields(Options)}


def test_no_option_gives_the_defaults() -> None:
    assert options.parse([]) == Options()


def test_options_live_beside_those_of_a_program() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    options.add_arguments(parser)
    namespace = parser.parse_args(["flux", "--lowvram", "--reserve-vram", "2"])
    assert options.from_args(namespace) == Options(lowvram=True, reserve_vram=2.0)


def test_a_command_line_without_the_options_gives_the_defaults() -> None:
    assert options.from_args(argparse.Namespace(model="flux")) == Options()


def test_the_help_text_names_every_option() -> None:
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    text = parser.format_help()
    missing = [f.name for f in dataclasses.fields(Options) if options.flag(f.name) not in text]
    assert missing == []


EXCLUDING = [
    ("--lowvram --highvram", "argument --highvram: not allowed with argument --lowvram"),
    ("--cpu --gpu-only", "argument --gpu-only: not allowed with argument --cpu"),
    ("--force-fp16 --force-fp32", "argument --force-fp32: not allowed with argument --force-fp16"),
    ("--fp16-unet --bf16-unet", "argument --bf16-unet: not allowed with argument --fp16-unet"),
    ("--fp16-vae --fp32-vae", "argument --fp32-vae: not allowed with argument --fp16-vae"),
    (
        "--fp16-text-enc --fp32-text-enc",
        "argument --fp32-text-enc: not allowed with argument --fp16-text-enc",
    ),
    (
        "--use-sage-attention --use-flash-attention",
        "argument --use-flash-attention: not allowed with argument --use-sage-attention",
    ),
    (
        "--async-offload 3 --disable-async-offload",
        "argument --disable-async-offload: not allowed with argument --async-offload",
    ),
]


@pytest.mark.parametrize(("line", "reason"), EXCLUDING)
def test_options_that_exclude_each_other_are_refused_on_a_command_line(
    line: str, reason: str
) -> None:
    with pytest.raises(BadInput) as caught:
        options.parse(line.split())
    assert str(caught.value) == f"cannot read the options: {reason}"


def test_a_program_that_gets_two_excluding_options_ends_with_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = argparse.ArgumentParser(prog="holdfast")
    options.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--novram", "--cpu"])
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == "holdfast: error: argument --cpu: not allowed with argument --novram"


def test_an_option_nobody_knows_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        options.parse(["--warp"])
    assert str(caught.value) == (
        "unknown option '--warp'\n  expected: an option of model management"
    )


def test_two_states_are_refused_in_python_too() -> None:
    with pytest.raises(BadInput) as caught:
        Options(lowvram=True, gpu_only=True)
    assert str(caught.value) == (
        "cannot use --gpu-only together with --lowvram\n"
        "  expected: one of --gpu-only, --highvram, --normalvram, --lowvram, --novram, --cpu\n"
        "  try: leave out --lowvram"
    )


def test_directml_on_the_cpu_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        Options(directml=0, cpu=True)
    assert str(caught.value) == (
        "cannot use --directml together with --cpu\n"
        "  expected: one of --directml, --cpu\n"
        "  try: leave out --cpu"
    )


def test_no_streams_and_a_number_of_them_are_refused_together_even_if_it_is_0() -> None:
    with pytest.raises(BadInput) as caught:
        Options(async_offload=0, disable_async_offload=True)
    assert str(caught.value) == (
        "cannot use --async-offload together with --disable-async-offload\n"
        "  expected: one of --async-offload, --disable-async-offload\n"
        "  try: leave out --disable-async-offload"
    )


NUMBERS = [
    (
        {"reserve_vram": -1.0},
        "cannot use --reserve-vram -1.0\n  expected: a number of GB, 0 or more",
    ),
    (
        {"reserve_vram": float("nan")},
        "cannot use --reserve-vram nan\n  expected: a number of GB, 0 or more",
    ),
    (
        {"reserve_vram": float("inf")},
        "cannot use --reserve-vram inf\n  expected: a number of GB, 0 or more",
    ),
    (
        {"async_offload": -2},
        "cannot use --async-offload -2\n  expected: a number of streams, 0 or more",
    ),
    (
        {"directml": -2},
        "cannot use --directml -2\n"
        "  expected: the number of a DirectML device, or no number for the default one",
    ),
    ({"fast": ("warp",)}, "cannot use --fast warp\n  expected: one of fp16_accumulation"),
]


@pytest.mark.parametrize(("fields", "text"), NUMBERS)
def test_a_value_that_cannot_be_used_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(BadInput) as caught:
        Options(**fields)
    assert str(caught.value) == text


def test_the_reserve_is_given_in_units_of_two_to_the_thirty() -> None:
    assert options.parse(["--reserve-vram", "0.5"]).reserve_vram_bytes == 2**29
    assert Options(reserve_vram=0).reserve_vram_bytes == 0
    assert Options().reserve_vram_bytes is None


def test_options_cannot_be_changed() -> None:
    given: Any = Options()
    with pytest.raises(dataclasses.FrozenInstanceError):
        given.cpu = True
