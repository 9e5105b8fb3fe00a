"""Runs whose memory per GPU was published, each with its source, and what the plan's formulas say of them."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from gpudoctor.plan.memory import ALLOCATOR_SHARE, PlanJob, RankSplit, memory_of
from gpudoctor.plan.model_shape import ModelShape
from gpudoctor.plan.model_sizes import shape_of_size
from gpudoctor.plan.tensor_bytes import Kernels, Precision, Recompute
from gpudoctor.text.units import GIB


class Source(NamedTuple):
    """A public page; `key` is its link's name in docs/plan-accuracy.md."""

    key: str
    title: str
    url: str

    @property
    def definition(self) -> str:
        return f"[{self.key}]: {self.url}"


_BENCHMARKS = "https://github.com/pytorch/torchtitan/blob"
_THUNDER = "https://github.com/Lightning-AI/lightning-thunder"
TITAN = Source(
    "titan", "torchtitan, December 2024",
    f"{_BENCHMARKS}/31a17bfdb70bab6f62a13d21816a5339b911d6e3/benchmarks/llama3_h100_202412_torchtitan.md",
)  # fmt: skip
TITAN_382 = Source(
    "titan-382", "torchtitan pull request 382, July 2024", "https://github.com/pytorch/torchtitan/pull/382"
)
TUNE = Source("tune", "torchtune's README", "https://github.com/pytorch/torchtune#optimization-flags")
WHITEFIBER = Source(
    "whitefiber", "torchtitan, June 2025, by Trainy and WhiteFiber",
    f"{_BENCHMARKS}/1e216ce3ae14be1ea75e423c604ac7c842c3e3bc/benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md",
)  # fmt: skip
BUBBLE = Source("bubble", "Zero Bubble Pipeline Parallelism", "https://arxiv.org/abs/2401.10241")
THUNDER_13B = Source("thunder-474", "lightning-thunder issue 474", f"{_THUNDER}/issues/474")
THUNDER_DDP = Source("thunder-1426", "lightning-thunder issue 1426", f"{_THUNDER}/issues/1426")
THUNDER_AC = Source("thunder-1261", "lightning-thunder pull request 1261", f"{_THUNDER}/pull/1261")
# where in the source the figure is
WHERE = {
    "bubble": "tables 3 and 4, 1F1B",
    "titan-382": "description, without the change",
    "tune": "optimization flags, packed data set, peak memory active",
    "thunder-474": "comment of 2024-06-11, inductor",
    "thunder-1426": "torch.compile, 8 x H100",
    "thunder-1261": "comment of 2024-10-31, inductor",
}

# What the figure is: PyTorch's reserved memory (with what the allocator lost), or its allocated memory
Counter = Literal["reserved", "allocated"]


class Run(NamedTuple):
    """A published figure. `other`: why the formulas do not describe this run wholly: shown, not held to 15 %."""

    what: str
    source: Source
    counter: Counter
    unit: Literal["GiB", "GB"]
    published: float
    job: PlanJob
    split: RankSplit
    other: str = ""
    table: int | None = None

    @property
    def predicted(self) -> float:
        share = ALLOCATOR_SHARE if self.counter == "reserved" else 0.0
        return memory_of(self.job, self.split, share).tensors / (GIB if self.unit == "GiB" else 1e9)

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1

    @property
    def row(self) -> str:
        place = WHERE.get(self.source.key) or (f"table {self.table}" if self.table else "")
        link = f"[{self.source.title}][{self.source.key}]"
        note = "; ".join(part for part in (f"{link}, {place}" if place else link, self.other) if part)
        figures = f"{self.published:.1f} {self.unit} | {self.predicted:.1f} | {self.error:+.0%}"
        return f"| {self.what} | {figures} | {self.counter} | {note} |"


def fsdp(ranks: int, tensor: int = 1) -> RankSplit:
    return RankSplit("fsdp", ranks, tensor, 1, "parameters", ranks, engine="sharded")


def _job(
    shape: ModelShape, seq: int, batch: int, recompute: Recompute, precision: Precision = "bf16", steps: int = 1
) -> PlanJob:
    return PlanJob(shape, precision, "adamw", seq, batch, steps, recompute)


def _thunder(shape: ModelShape, seq: int, batch: int, recompute: Recompute) -> PlanJob:
    """A run of lightning-thunder's benchmark, which computes the loss on bf16 logits."""
    return msgspec.structs.replace(_job(shape, seq, batch, recompute, "bf16-true"), kernels=Kernels(bf16_loss=True))


def _llama(hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, vocab: int = 32000) -> ModelShape:
    return ModelShape(
        layers, hidden, heads, kv_heads, hidden // heads, ffn, vocab, name="", family="llama", origin="", max_seq=32768
    )  # fmt: skip


def _bubble_gpt(layers: int, hidden: int, heads: int) -> ModelShape:
    return ModelShape(
        layers, hidden, heads, heads, hidden // heads, 4 * hidden, 50304, name="", family="gpt2", origin="",
        max_seq=1024, gated=False, tied=True, positions=1024, norm_bias=True, qkv_bias=True, out_bias=True,
        mlp_bias=True,
    )  # fmt: skip


def _bubble(name: str, layers: int, hidden: int, heads: int, stages: int, batch: int, steps: int, gb: float) -> Run:
    shape = _bubble_gpt(layers, hidden, heads)
    job = PlanJob(shape, "bf16", "adamw", 1024, batch, steps, "none", Kernels(flash=False, dropout=True))
    split = RankSplit("pipeline", 1, 1, stages, engine="megatron")
    what = f"GPT {name}, pipeline of {stages} x A100-80, micro-batch {batch} x 1024"
    return Run(what, BUBBLE, "allocated", "GB", gb, job, split)


_8B, _13B, _70B, _405B = (shape_of_size(size) for size in ("8b", "13b", "70b", "405b"))
_MISTRAL = _llama(4096, 32, 32, 8, 14336)
_3D = RankSplit("3d", 8, 8, 8, "optimizer", 8, engine="megatron")


def _cut(shape: ModelShape, layers: int) -> ModelShape:
    return msgspec.structs.replace(shape, layers=layers)


RUNS: tuple[Run, ...] = (
    Run("Llama 3.1 8B, FSDP 8 x H100-96, batch 2 x 8192, selective", TITAN, "reserved", "GiB", 82.4,
        _job(_8B, 8192, 2, "selective"), fsdp(8), table=1),
    Run("the same with torch.compile", TITAN, "reserved", "GiB", 77.0,
        _job(_8B, 8192, 2, "selective"), fsdp(8), table=1),
    Run("Llama 3.1 8B, FSDP 128 x H100-96, batch 2 x 8192, selective", TITAN, "reserved", "GiB", 67.0,
        _job(_8B, 8192, 2, "selective"), fsdp(128), table=3),
    Run("the same with torch.compile", TITAN, "reserved", "GiB", 62.0,
        _job(_8B, 8192, 2, "selective"), fsdp(128), table=3),
    Run("Llama 3.1 8B, FSDP 8 x H100-96, batch 2 x 8192, selective, torch.compile", TITAN_382, "reserved", "GiB", 69.04,
        _job(_8B, 8192, 2, "selective"), fsdp(8)),
    Run("Llama 3.2 3B, one A100, bf16-true, batch 2 x 4096, torch.compile", TUNE, "allocated", "GiB", 51.0,
        _job(shape_of_size("3b"), 4096, 2, "none", "bf16-true"), RankSplit("ddp", 1)),
    Run("the same without torch.compile", TUNE, "allocated", "GiB", 60.0,
        _job(shape_of_size("3b"), 4096, 2, "none", "bf16-true"), RankSplit("ddp", 1)),
    Run("Mistral 7B of 16 layers, DDP, bf16-true, batch 1 x 4096", THUNDER_DDP, "allocated", "GB", 41.68,
        _thunder(_cut(_MISTRAL, 16), 4096, 1, "none"), RankSplit("ddp", 8)),
    Run("Mistral 7B of 4 layers, DDP, bf16-true, batch 1 x 4096", THUNDER_DDP, "allocated", "GB", 12.88,
        _thunder(_cut(_MISTRAL, 4), 4096, 1, "none"), RankSplit("ddp", 8)),
    Run("Llama 2 13B of 20 layers, one H100, bf16-true, batch 2 x 4096", THUNDER_13B, "allocated", "GB", 74.56,
        _thunder(_cut(_13B, 20), 4096, 2, "none"), RankSplit("ddp", 1)),
    Run("Llama 2 13B of 10 layers, one H100, bf16-true, batch 2 x 4096", THUNDER_13B, "allocated", "GB", 39.43,
        _thunder(_cut(_13B, 10), 4096, 2, "none"), RankSplit("ddp", 1)),
    Run("Llama 2 13B of 20 layers, FSDP 8 x H100, bf16-true, batch 2 x 4096", THUNDER_13B, "allocated", "GB", 39.41,
        _thunder(_cut(_13B, 20), 4096, 2, "none"), fsdp(8)),
    Run("Llama 2 13B of 10 layers, FSDP 8 x H100, bf16-true, batch 2 x 4096", THUNDER_13B, "allocated", "GB", 21.0,
        _thunder(_cut(_13B, 10), 4096, 2, "none"), fsdp(8)),
    Run("Vicuna 7B 16k, FSDP 8 x H100, bf16-true, batch 5 x 16384, full", THUNDER_AC, "allocated", "GB", 51.0,
        _thunder(_llama(4096, 32, 32, 32, 11008), 16384, 5, "full"), fsdp(8)),
    Run("Mistral 7B v0.2, FSDP 8 x H100, bf16-true, batch 3 x 32768, full", THUNDER_AC, "allocated", "GB", 64.63,
        _thunder(_MISTRAL, 32768, 3, "full"), fsdp(8)),
    Run("LongChat 13B 16k, FSDP 8 x H100, bf16-true, batch 3 x 16384, full", THUNDER_AC, "allocated", "GB", 48.59,
        _thunder(_13B, 16384, 3, "full"), fsdp(8)),
    Run("Code Llama 34B, FSDP 8 x H100, bf16-true, batch 1 x 16384, full", THUNDER_AC, "allocated", "GB", 50.8,
        _thunder(shape_of_size("34b"), 16384, 1, "full"), fsdp(8)),
    _bubble("1.5B", 22, 2304, 24, 8, 6, 24, 30),
    _bubble("6.2B", 30, 4096, 32, 8, 3, 24, 39),
    _bubble("14.6B", 46, 5120, 40, 16, 1, 48, 32),
    _bubble("28.3B", 62, 6144, 48, 32, 1, 96, 43),
    Run("Llama 3.1 8B, FSDP 8 x H100-96, batch 1 x 32768, full", TITAN, "reserved", "GiB", 83.9,
        _job(_8B, 32768, 1, "full"), fsdp(8), "float8 products, which are not modelled", table=2),
    Run("Llama 3.1 70B, FSDP 32 x tensor 8, batch 16 x 8192, full", TITAN, "reserved", "GiB", 71.9,
        _job(_70B, 8192, 16, "full"), fsdp(32, 8), "float8 products, which are not modelled", table=4),
    Run("Llama 3.1 405B, 8 x tensor 8 x pipeline 8, batch 32 x 8192 in 8, full", TITAN, "reserved", "GiB", 82.5,
        _job(_405B, 8192, 4, "full", steps=8), _3D,
        "float8, and FSDP where the plan has Megatron-LM's optimizer; 72.7 GiB with the interleaved schedule", table=5),
    Run("Llama 3.1 8B, FSDP 32 x H200, batch 2 x 8192, selective", WHITEFIBER, "reserved", "GiB", 47.96,
        _job(_8B, 8192, 2, "selective"), fsdp(32), "float8 down to the all-gather, and a compiled loss"),
)  # fmt: skip
HELD = tuple(run for run in RUNS if not run.other)
