"""The bytes that tensors hold are counted to the last one, and the model of a trial keeps what the formulas say."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec
import pytest

from gpudoctor.plan.memory import PlanJob, RankSplit, memory_of
from gpudoctor.plan.model_shape import ModelShape
from gpudoctor.plan.tensor_bytes import Kernels, Recompute, kept_bytes
from gpudoctor.probes.plan_verification.messages import TransformerShape
from tests.needs import needs

# torch, and what imports it, only in the tests: every worker collects this file, and one runs it
pytestmark = needs("torch")
KIB = 1024


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Other workers need the cores too, and the bytes are the same."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_tensor_counts_from_its_making_to_its_end_and_a_view_never() -> None:
    import torch

    from gpudoctor.probes.strategies.memory import LiveBytes

    with LiveBytes() as live:
        kept = torch.zeros(KIB, dtype=torch.uint8)
        assert live.now_bytes == KIB
        view = kept[:10].view(2, 5)
        assert live.now_bytes == KIB
        lost = kept + 1
        del lost
        assert (live.now_bytes, live.peak_bytes) == (KIB, 2 * KIB)
        del kept
        assert live.now_bytes == KIB  # the view holds it
        del view
        assert live.now_bytes == 0


def test_a_storage_that_is_emptied_counts_no_more() -> None:
    import torch

    from gpudoctor.probes.strategies.memory import LiveBytes

    with LiveBytes() as live:
        tensor = torch.zeros(KIB, dtype=torch.uint8)
        tensor.untyped_storage().resize_(0)
        assert live.now_bytes == 0
        tensor.untyped_storage().resize_(2 * KIB)
        assert live.now_bytes == 2 * KIB
    before = live.now_bytes
    tensor.untyped_storage().resize_(0)
    assert live.now_bytes == before  # outside, nothing is counted


def test_the_gradient_of_the_norm_is_that_of_torchs_own() -> None:
    import torch

    from gpudoctor.probes.strategies.transformer import Norm

    torch.manual_seed(3)
    x = torch.randn(2, 5, 8, requires_grad=True)
    norm = Norm(8)
    own = torch.autograd.grad(norm(x).square().sum(), [x, norm.weight])
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    plain = torch.autograd.grad((x * scale * norm.weight).square().sum(), [x, norm.weight])
    for mine, reference in zip(own, plain, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-5)


GPT = TransformerShape(
    4,
    128,
    4,
    4,
    32,
    512,
    1000,
    256,
    gated=False,
    tied=True,
    norm_bias=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
)
LLAMA = TransformerShape(4, 128, 4, 4, 32, 344, 1000)
GROUPED = TransformerShape(4, 128, 8, 4, 16, 448, 1000)
QWEN3, GEMMA2 = msgspec.structs.replace(GROUPED, qk_norm=True), msgspec.structs.replace(GROUPED, norms=4)
MODELS = pytest.mark.parametrize(
    "model", [GPT, LLAMA, GROUPED, QWEN3, GEMMA2], ids=["gpt", "llama", "grouped", "qwen3", "gemma2"]
)


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "autocast"])
@MODELS
def test_a_layer_keeps_what_the_formula_says(model: TransformerShape, autocast: bool) -> None:
    import torch

    from gpudoctor.probes.strategies.memory import LiveBytes
    from gpudoctor.probes.strategies.transformer import TransformerBlock

    batch, seq = 2, 256
    shape = ModelShape(name="", family="", origin="", max_seq=seq, **msgspec.structs.asdict(model))
    half = model.head_dim // 2
    rotary = None if model.positions else (torch.ones(seq, 1, half), torch.zeros(seq, 1, half))
    with LiveBytes() as live:
        layer = TransformerBlock(model)
        weights = live.now_bytes
        x = torch.randn(batch, seq, model.hidden, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = layer(x, rotary)
        kept = live.now_bytes - weights - out.untyped_storage().nbytes()
    assert weights == 4 * shape.layer_parameters
    if autocast:  # the 16-bit copies of the weights count as weights
        kept -= 2 * sum(p.numel() for p in layer.parameters() if p.dim() == 2)
    formula = kept_bytes(shape, "bf16" if autocast else "fp32", seq, Kernels(autocast=autocast), "none") * batch * seq
    # beside it: one number a token and head of the attention, two a token of the norms
    assert kept == pytest.approx(formula, rel=0.03)


@pytest.mark.wide(but=["llama-none"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@MODELS
def test_a_step_under_autocast_takes_what_the_plan_counts(model: TransformerShape, recompute: Recompute) -> None:
    """As a user's train.py does it: fp32 weights, nothing cast by hand."""

    import torch

    from gpudoctor.probes.strategies.memory import LiveBytes
    from gpudoctor.probes.strategies.transformer import Transformer, loss_of

    batch, seq = 2, 256
    model = msgspec.structs.replace(model, layers=4)
    shape = ModelShape(name="", family="", origin="", max_seq=seq, **msgspec.structs.asdict(model))
    tokens = torch.randint(model.vocab, (batch, seq))
    with LiveBytes() as live:
        transformer = Transformer(model)
        if recompute == "full":
            transformer.recompute = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
        optimizer = torch.optim.AdamW(transformer.parameters(), foreach=False)
        for _ in range(2):
            optimizer.zero_grad()
            live.peak_bytes = live.now_bytes
            with torch.autocast("cpu", torch.bfloat16):
                logits = transformer(tokens)
                loss = loss_of(logits, tokens)
            torch.autograd.backward(loss)
            optimizer.step()
    job = PlanJob(shape, "bf16", "adamw", seq, batch, recompute=recompute)
    assert memory_of(job, RankSplit("ddp", 1), 0.0).tensors == pytest.approx(live.peak_bytes, rel=0.08)
