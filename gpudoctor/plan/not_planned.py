"""What `gpudoctor plan` does not plan, and the rule of thumb for it."""

from __future__ import annotations

from gpudoctor.plan.model_shape import ModelShape
from gpudoctor.text.units import gib_text

NOT_PLANNED: dict[str, str] = {
    "lora": (
        "LoRA is not planned. Rule of thumb: the frozen weights take 2 bytes a parameter (7b: 14 GB; Hu et al., "
        "arXiv:2106.09685), 16 bytes for each parameter of the adapters (usually under 1 % of the model), and the "
        "activations of the same batch, which a plan of the whole model shows"
    ),
    "qlora": (
        "QLoRA is not planned. Rule of thumb: the frozen weights take about half a byte a parameter (65b on one GPU of "
        "48 GB; Dettmers et al., arXiv:2305.14314), 16 bytes for each parameter of the adapters (usually under 1 % of "
        "the model), and the activations of the same batch, which a plan of the whole model shows"
    ),
}
_FROZEN_BYTES = {"lora": 2.0, "qlora": 0.5}
_ADAPTERS, _ADAPTER_BYTES = 0.01, 16


def words_of(method: str, shape: ModelShape) -> str:
    """The rule of thumb, with its figures for this model, and what is missing in them."""
    weights, adapters = shape.parameters * _FROZEN_BYTES[method], shape.parameters * _ADAPTERS * _ADAPTER_BYTES
    return (
        f"{NOT_PLANNED[method]}. For {shape.name}: {gib_text(weights)} of frozen weights and at most "
        f"{gib_text(adapters)} for adapters of 1 %, over all GPUs that share them; "
        "the activations come on top, on each GPU"
    )
