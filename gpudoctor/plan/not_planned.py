"""What `gpudoctor plan` does not plan, and the rule of thumb for it."""

from __future__ import annotations

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
