"""Named models: the published dimensions, counted as their publishers count them."""

from __future__ import annotations

import json
from typing import Final

import pytest
import transformers

from lineage.recipe import RecipeError
from lineage.shipped import shipped_folder
from trainer.model.config.families import PLANNED_KINDS
from trainer.model.config.sizes import model_config, model_names, takes_vocabulary
from trainer.planning.counts import num_parameters

PUBLISHED: Final = {
    # Of safetensors' headers, as the model pages of Hugging Face show them; DeepSeek-V3's without the module that
    # predicts one more token (its README_WEIGHTS.md). These count the biases that correct routers, of which no
    # gradient is taken, as parameters: less than one in a million.
    "deepseek-v3": 671_026_419_200,
    "gemma2-2B": 2_614_341_888,
    "gemma2-9B": 9_241_705_984,
    "gemma2-27B": 27_227_128_320,
    "gemma3-270M": 268_098_176,
    "gemma3-1B": 999_885_952,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "mistral-7B": 7_241_732_096,
    "mistral-nemo-12B": 12_247_782_400,
    "mixtral-8x7B": 46_702_792_704,
    "moonlight-16B-A3B": 15_960_111_936,
    "olmo2-1B": 1_484_916_736,
    "olmo2-7B": 7_298_617_344,
    "olmo2-13B": 13_716_198_400,
    "olmo2-32B": 32_234_279_936,
    "olmo3-7B": 7_298_011_136,
    "olmo3-32B": 32_233_522_176,
    "qwen2.5-0.5B": 494_032_768,
    "qwen2.5-1.5B": 1_543_714_304,
    "qwen2.5-3B": 3_085_938_688,
    "qwen2.5-7B": 7_615_616_512,
    "qwen2.5-14B": 14_770_033_664,
    "qwen2.5-32B": 32_763_876_352,
    "qwen3-0.6B": 596_049_920,
    "qwen3-1.7B": 1_720_574_976,
    "qwen3-4B": 4_022_468_096,
    "qwen3-8B": 8_190_735_360,
    "qwen3-14B": 14_768_307_200,
    "qwen3-32B": 32_762_123_264,
    "qwen3-30B-A3B": 30_532_122_624,
    "qwen3-235B-A22B": 235_093_634_560,
    "smollm3-3B": 3_075_098_624,
    # Llama 3 (2407.21783), with its vocabulary.
    "1B": 1_235_814_400,
    "8B": 8_030_261_248,
    "70B": 70_553_706_496,
    "405B": 405_853_388_800,
}  # fmt: skip
OWN: Final = {"125M", *(name for name in model_names() if name.endswith("debug"))}
"""Of no publisher."""
LLAMA_3_VOCABULARY: Final = 128_256


def test_every_named_model_has_a_published_total_or_is_of_no_publisher() -> None:
    assert {*PUBLISHED, *OWN} == {*model_names()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_named_model_has_the_parameters_that_its_publisher_counts(name: str) -> None:
    vocabulary = LLAMA_3_VOCABULARY if takes_vocabulary(name) else 1
    config = model_config(name, vocabulary, PLANNED_KINDS)
    assert num_parameters(config) == pytest.approx(PUBLISHED[name], rel=1e-6)


@pytest.mark.parametrize("name", model_names())
def test_a_named_model_is_one_that_transformers_has_too(name: str) -> None:
    described = json.loads((shipped_folder("models") / f"{name}.json").read_text())
    kind = described.pop("model_type")
    known = transformers.CONFIG_MAPPING[kind]().to_dict().keys()
    spelt = {"head_dim", "rope_theta", "rope_scaling", "rope_local_base_freq", "num_experts"}
    assert [key for key in described if key not in known | spelt] == []


def test_a_name_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"train.model = 'qwen3-0.8B': .*did you mean 'qwen3-0.6B'\?"):
        model_config("qwen3-0.8B", 100)


def test_a_named_model_of_a_smaller_vocabulary_than_the_data_is_refused() -> None:
    with pytest.raises(RecipeError, match="vocab_size 32000 is smaller than the shards' 100278 ids"):
        model_config("mixtral-8x7B", 100_278)
