"""Tokens one after the other, with keys and values kept: those that transformers generates."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
import transformers

from lineage.recipe import RecipeError
from tests.support.training.transformers_models import FAMILIES, VARIANTS, VOCAB, WINDOW, reference_model
from trainer.huggingface.generation import Decoding, chosen, generate, next_logits
from trainer.huggingface.opened import OpenedModel, open_model
from trainer.model.cache import KeyValueCache
from trainer.model.rows import DeviceRows

LENGTHS = (1, WINDOW - 1, WINDOW + 5, 40)
"""Of prompts: shorter than a window, and several windows long."""
NUM_EACH = 5
NUM_NEW = 24
GREEDY = Decoding()


def opened(name: str, folder: Path) -> OpenedModel:
    reference_model(name).save(folder, torch.float64)
    return open_model(str(folder), device=torch.device("cpu"))


def prompts(length: int) -> torch.Tensor:
    return torch.randint(0, VOCAB - 1, (NUM_EACH, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_greedy_tokens_are_those_of_transformers_for_twenty_prompts(name: str, tmp_path: Path) -> None:
    model = opened(name, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    for length in LENGTHS:
        expected = theirs.generate(
            prompts(length),
            max_new_tokens=NUM_NEW,
            min_new_tokens=NUM_NEW,
            do_sample=False,
            eos_token_id=None,
        )
        for prompt, row in zip(prompts(length).tolist(), expected.tolist(), strict=True):
            assert list(itertools.islice(generate(model, prompt, GREEDY), NUM_NEW)) == row[length:]


@pytest.mark.parametrize("name", ["gemma2", "gemma3_text", "deepseek_v3", "gpt_oss", "smollm3", "qwen3_moe"])
def test_a_pass_with_a_cache_gives_the_logits_of_a_pass_without(name: str, tmp_path: Path) -> None:
    model, row = opened(name, tmp_path), prompts(40)[0]
    whole = model.logits(DeviceRows.of_one_document(row[None]))[0]
    config = model.config
    cache = KeyValueCache([config.window_of(number) for number in range(config.num_layers)])
    begin = 0
    for size in (17, 1, 1, 9, 1, 11):  # several tokens may follow a cache, too
        piece = row[begin : begin + size].tolist()
        begin += size
        assert torch.allclose(next_logits(model, piece, cache), whole[begin - 1], atol=1e-11, rtol=0)


def test_a_layer_with_a_window_keeps_no_more_than_its_window(tmp_path: Path) -> None:
    model = opened("gpt_oss", tmp_path)
    config = model.config
    cache = KeyValueCache([config.window_of(number) for number in range(config.num_layers)])
    next_logits(model, prompts(40)[0].tolist(), cache)
    assert [cache.kept(number) for number in range(config.num_layers)] == [WINDOW - 1, 40, WINDOW - 1, 40]


def test_draws_follow_the_softmax_within_top_p() -> None:
    logits_V = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0])

    def shares(decoding: Decoding) -> torch.Tensor:
        generator = torch.Generator().manual_seed(decoding.seed)
        found = [chosen(logits_V, decoding, generator) for _ in range(4000)]
        return torch.bincount(torch.tensor(found), minlength=5) / len(found)

    for temperature in (0.5, 1.0, 3.0):
        expected = (logits_V / temperature).softmax(-1)
        assert (shares(Decoding(temperature=temperature)) - expected).abs().max() < 0.03
    # The first two have .637 + .234 = .871: with them .85 is reached, and .9 only with the third.
    assert (shares(Decoding(temperature=1.0, top_p=0.85)) > 0).tolist() == [True, True, False, False, False]
    assert (shares(Decoding(temperature=1.0, top_p=0.9)) > 0).tolist() == [True, True, True, False, False]
    assert (shares(Decoding(temperature=1.0, top_p=1e-9)) > 0).tolist() == [True, False, False, False, False]


def test_equal_seeds_draw_equal_tokens_and_others_do_not(tmp_path: Path) -> None:
    model = opened("llama", tmp_path)

    def drawn(seed: int) -> list[int]:
        return list(itertools.islice(generate(model, [3], Decoding(temperature=1.0, seed=seed)), 20))

    assert drawn(5) == drawn(5) != drawn(6)


def test_only_allowed_ids_are_chosen_and_a_row_ends_with_the_context(tmp_path: Path) -> None:
    model = opened("llama", tmp_path)
    allowed = {7, 9, 300}  # the last is none of the model's
    found = list(generate(model, [3, 4], Decoding(temperature=1.0), allowed))
    assert set(found) == {7, 9} and len(found) == model.seq_len - 2


@pytest.mark.parametrize("length", [0, 128])
def test_a_prompt_that_is_empty_or_leaves_no_room_is_refused(length: int, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=rf"the prompt has {length} tokens: expected 1 to 127"):
        next(generate(opened("llama", tmp_path), [1] * length, GREEDY))
