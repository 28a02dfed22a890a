"""The table of communication that nothing hides."""

import pytest

from benchmarks.overlap import MODELS, large, row, small


@pytest.mark.parametrize("model", MODELS)
def test_rings_hide_what_a_large_layer_sends(model):
    text, ratio = row("layer", large()["large layer, forward"], model)
    plain, _, rings = (float(cell.split(" of ")[0].replace(",", "")) for cell in text.split(" | ")[2:5])
    assert ratio is not None and rings < plain / 4


@pytest.mark.parametrize("name", ["fsdp_mlp_train", "mlp_megatron_train"])
def test_a_small_program_keeps_its_collectives(name):
    text, _ = row(name, small(name), "tpu-v5p")
    assert text.split(" | ")[5] == "0"


def test_order_hides_what_a_small_program_sends():
    _, ratio = row("mlp", small("fsdp_mlp_train"), "tpu-v5p")
    assert ratio is not None and ratio < 1


@pytest.mark.parametrize("name", ["mlp_megatron_train", "mlp_dp_train"])
@pytest.mark.parametrize("model", MODELS)
def test_neither_order_nor_smaller_all_reduces_add_time(name, model):
    _, ratio = row("mlp", small(name), model)
    assert ratio is not None and ratio <= 1
