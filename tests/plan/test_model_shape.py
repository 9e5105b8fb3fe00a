"""Parameters are counted exactly, from a size or a config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpudoctor.plan.hf_config import shape_of_config
from gpudoctor.plan.model_shape import ModelError, layers_of_stages
from gpudoctor.plan.model_sizes import PUBLISHED, made_shape, shape_of_size

# (config.json as published on Hugging Face, parameters of its safetensors)
CONFIGS: list[tuple[dict[str, object], int]] = [
    ({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
      "num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 128256}, 8030261248),
    ({"model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
      "num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 32000}, 7241732096),
    ({"model_type": "mixtral", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
      "num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8,
      "num_experts_per_tok": 2}, 46702792704),
    ({"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
      "num_hidden_layers": 28, "intermediate_size": 18944, "vocab_size": 152064}, 7615616512),
    ({"model_type": "qwen3", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
      "num_hidden_layers": 36, "intermediate_size": 12288, "vocab_size": 151936}, 8190735360),
    ({"model_type": "gemma", "hidden_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 16,
      "head_dim": 256, "num_hidden_layers": 28, "intermediate_size": 24576, "vocab_size": 256000}, 8537680896),
    ({"model_type": "gemma2", "hidden_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 8,
      "head_dim": 256, "num_hidden_layers": 42, "intermediate_size": 14336, "vocab_size": 256000}, 9241705984),
    ({"model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 32, "num_key_value_heads": 32,
      "num_hidden_layers": 32, "intermediate_size": 8192, "vocab_size": 32064}, 3821079552),
    ({"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
      "vocab_size": 50257}, 124439808),
    ({"model_type": "gpt_neox", "hidden_size": 6144, "num_attention_heads": 64, "num_hidden_layers": 44,
      "intermediate_size": 24576, "vocab_size": 50432}, 20554567680),
    ({"model_type": "opt", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "ffn_dim": 16384,
      "vocab_size": 50272, "max_position_embeddings": 2048}, 6658473984),
    ({"model_type": "qwen3_moe", "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4,
      "head_dim": 128, "num_hidden_layers": 48, "intermediate_size": 6144, "moe_intermediate_size": 768,
      "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
      "vocab_size": 151936}, 30532122624),
    ({"model_type": "gpt_oss", "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
      "head_dim": 64, "num_hidden_layers": 24, "intermediate_size": 2880, "num_local_experts": 32,
      "num_experts_per_tok": 4, "attention_bias": True, "vocab_size": 201088}, 20914757184),
    ({"model_type": "gemma3_text", "hidden_size": 1152, "num_attention_heads": 4, "num_key_value_heads": 1,
      "head_dim": 256, "num_hidden_layers": 26, "intermediate_size": 6912, "vocab_size": 262144}, 999885952),
]  # fmt: skip


def written(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@pytest.mark.parametrize(("config", "parameters"), CONFIGS, ids=lambda value: str(value)[:24])
def test_a_config_gives_the_models_own_number_of_parameters(
    config: dict[str, object], parameters: int, tmp_path: Path
) -> None:
    assert shape_of_config(written(tmp_path, config)).parameters == parameters


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("124m", 124439808),
        ("1.5b", 1557611200),
        ("7b", 6738415616),
        ("13b", 13015864320),
        ("70B", 70553706496),
        ("405b", 405853388800),
    ],
)
def test_a_nominal_size_is_the_published_model(size: str, parameters: int) -> None:
    assert shape_of_size(size).parameters == parameters


def test_every_published_size_is_within_12_percent_of_its_name() -> None:
    for size in PUBLISHED:
        nominal = float(size[:-1]) * {"m": 1e6, "b": 1e9}[size[-1]]
        # Llama 3.2 1B has 1.24 billion parameters, which Meta calls 1B
        assert shape_of_size(size).parameters == pytest.approx(nominal, rel=0.25 if size == "1b" else 0.12)


@pytest.mark.parametrize("parameters", [1e6, 1e7, 5e8, 2e9, 2e10, 1e11, 1e12, 5e12])
def test_a_size_that_nobody_published_gets_a_shape_of_that_size_which_can_be_split(parameters: float) -> None:
    shape = made_shape(parameters)
    assert shape.parameters == pytest.approx(parameters, rel=0.05)
    if parameters >= 1e10:
        assert shape.heads % 8 == 0


def test_only_the_chosen_experts_of_a_mixture_are_active(tmp_path: Path) -> None:
    shape = shape_of_config(written(tmp_path, CONFIGS[2][0]))
    assert shape.active_parameters == 12879925248
    assert shape_of_config(written(tmp_path, CONFIGS[11][0])).active_parameters == 3353032704
    # OpenAI's model card, which leaves the embedding out: 3.61 billion
    gpt_oss = shape_of_config(written(tmp_path, CONFIGS[12][0]))
    assert gpt_oss.multiplied_parameters == 3608307264


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    written(tmp_path, CONFIGS[0][0])
    assert shape_of_config(tmp_path).name == tmp_path.name


def test_stages_differ_by_one_layer_at_most_and_the_ends_get_fewer() -> None:
    assert layers_of_stages(22, 8) == (2, 3, 3, 3, 3, 3, 3, 2)
    assert layers_of_stages(32, 4) == (8, 8, 8, 8)
    for layers in range(1, 60):
        for stages in range(1, layers + 1):
            split = layers_of_stages(layers, stages)
            assert sum(split) == layers
            assert max(split) - min(split) <= 1


LLAMA = CONFIGS[0][0]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "no JSON"),
        ("[1]", "it must be a JSON object"),
        ("[" * 100000, "no JSON"),
        ({"hidden_size": 1}, "model_type"),
        ({"model_type": "mamba"}, "'mamba' is not known; known are gemma"),
        ({"model_type": "llama"}, "'hidden_size' is missing"),
        ({**LLAMA, "hidden_size": -4}, "hidden_size is -4"),
        ({**LLAMA, "hidden_size": "4096"}, "hidden_size is '4096'"),
        ({**LLAMA, "num_hidden_layers": True}, "num_hidden_layers is True"),
        ({**LLAMA, "num_hidden_layers": 10**30}, "num_hidden_layers is 1000"),
        ({**LLAMA, "num_key_value_heads": 5}, "32 heads cannot share 5"),
        ({**LLAMA, "tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({**LLAMA, "num_attention_heads": 33}, "33 heads cannot share a hidden size of 4096 evenly"),
        ({**LLAMA, "vocab_size": 1, "hidden_size": 32, "intermediate_size": 1, "num_hidden_layers": 1}, "no sense"),
        ({"model_type": "mixtral", **{k: v for k, v in LLAMA.items() if k != "model_type"}, "num_local_experts": 1},
         "2 experts a token of 1"),
        ({**CONFIGS[11][0], "mlp_only_layers": [0, 1]}, "with the key 'mlp_only_layers' this is no plain qwen3_moe"),
        ({**CONFIGS[11][0], "decoder_sparse_step": 2}, "with the key 'decoder_sparse_step' this is no plain"),
        ({**CONFIGS[11][0], "num_experts": None}, "the key 'num_experts' is missing"),
        ({"model_type": "deepseek_v3", "hidden_size": 7168}, "the architecture 'deepseek_v3' is not known"),
        ({"model_type": "gemma3", "text_config": {"hidden_size": 2560}}, "the architecture 'gemma3' is not known"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_planned_for_is_one_line_with_file_and_key(
    config: object, words: str, tmp_path: Path
) -> None:
    path = written(tmp_path, config)
    with pytest.raises(ModelError) as error:
        shape_of_config(path)
    assert str(error.value).startswith(f"{path}: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_config_of_many_megabytes_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, " " * (5 * 2**20))
    with pytest.raises(ModelError, match="more than 4 MiB"):
        shape_of_config(path)
