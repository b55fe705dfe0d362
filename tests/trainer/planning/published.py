"""Runs that others published: what ran, and how long a step took, each with its source and row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.support.training.plans import DEEPSEEK_V3
from tests.trainer.planning.formulae import Gpt, gpt_step_flops
from trainer.model.config.description import Experts, ModelConfig
from trainer.model.config.families import PLANNED_KINDS, from_hugging_face
from trainer.model.config.sizes import model_config
from trainer.options import PlanTable
from trainer.planning.communication import traffic
from trainer.planning.counts import flops_per_token
from trainer.planning.gpus import machine_of
from trainer.planning.layout import PlannedLayout, Recompute, Zero, micro_batches
from trainer.planning.throughput import Throughput, throughput
from trainer.recipe_tables.parallelism import ContextTable, Mesh, PipelineTable, Schedule

MEGATRON: Final[dict[str, object]] = {"fused_attention": False, "fused_gradients": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row. `seconds`: of a step, as published or from what was. `plan`: keys of `[plan]` that say what
    system it was, where it is not the default."""

    source: str
    row: str
    config: ModelConfig
    gpu: str
    seconds: float
    seq_len: int
    batch: int
    micro_batch: int
    mesh: Mesh
    schedule: Schedule = "1f1b"
    virtual: int | None = None
    ends_lighter: int = 0
    recompute: Recompute = "none"
    zero: Zero = 0
    float8: bool = False
    compiled: bool = True
    async_tp: bool = False
    plan: dict[str, object] = field(default_factory=dict)

    def layout(self) -> PlannedLayout:
        """As a recipe would spread it."""
        pipeline = PipelineTable(
            schedule=self.schedule,
            virtual_stages=self.virtual,
            first_stage_less_layers=self.ends_lighter,
            last_stage_less_layers=self.ends_lighter,
        )
        rows = -(-self.batch // self.mesh.dp)
        return PlannedLayout(
            config=self.config,
            mesh=self.mesh,
            pipeline=pipeline,
            context=ContextTable(),
            zero=self.zero,
            recompute=self.recompute,
            float8=self.float8,
            compute_bytes=2,
            weight_bytes=4,
            seq_len=self.seq_len,
            global_batch=self.batch,
            micro_batch=self.micro_batch,
            num_micro_batches=micro_batches(pipeline, self.mesh.pp, -(-rows // self.micro_batch)),
            async_tp=self.async_tp,
            compiled=self.compiled,
        )

    def predicted(self, **changes: object) -> Throughput:
        """What the plan says of it."""
        machine = machine_of(PlanTable(gpu=self.gpu, **{**self.plan, **changes}))  # type: ignore[arg-type]
        layout = self.layout()
        return throughput(layout, traffic(layout, machine), machine)


def gpt(layers: int, width: int, heads: int, vocabulary: int = 51_200) -> ModelConfig:
    """A GPT whose MLP of 4h has as many parameters as our SwiGLU's three matrices."""
    hidden = -(-width * 8 // 3 // 8) * 8
    return ModelConfig(
        num_layers=layers,
        width=width,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width // heads,
        hidden=hidden,
        vocab_size=vocabulary,
        tied=True,
    )


def llama(size: str) -> ModelConfig:
    """One of Llama 3's."""
    return model_config(size, 128_256)


def mesh(tp: int, pp: int, dp: int, cp: int = 1, *, shard: bool = False) -> Mesh:
    """Axes in the papers' order."""
    return Mesh(dp_replicate=1 if shard else dp, dp_shard=dp if shard else 1, tp=tp, pp=pp, cp=cp, ep=1)


GPT_SIZES: Final = {
    "1.7B": (24, 2304, 24),
    "3.6B": (30, 3072, 32),
    "7.5B": (36, 4096, 32),
    "18.4B": (40, 6144, 48),
    "39.1B": (48, 8192, 64),
    "76.1B": (60, 10240, 80),
    "145.6B": (80, 12288, 96),
    "310.1B": (96, 16384, 128),
    "529.6B": (105, 20480, 128),
    "1008B": (128, 25600, 160),
}


def narayanan_table_1() -> Iterator[Run]:
    """2104.04473, table 1; micro-batches and stages of Megatron-LM's examples/sc21/run_table_1.sh."""
    for name, tp, pp, gpus, batch, micro, virtual, teraflops in (
        ("1.7B", 1, 1, 32, 512, 16, 1, 137),
        ("3.6B", 2, 1, 64, 512, 16, 1, 138),
        ("7.5B", 4, 1, 128, 512, 16, 1, 142),
        ("18.4B", 8, 1, 256, 1024, 8, 1, 135),
        ("39.1B", 8, 2, 512, 1536, 4, 1, 138),
        ("76.1B", 8, 4, 1024, 1792, 2, 3, 140),
        ("145.6B", 8, 8, 1536, 2304, 2, 2, 148),
        ("310.1B", 8, 16, 1920, 2160, 1, 2, 155),
        ("529.6B", 8, 35, 2520, 2520, 1, 3, 163),
        ("1008B", 8, 64, 3072, 3072, 1, 1, 163),
    ):
        layers, width, _ = GPT_SIZES[name]
        flops = gpt_step_flops(Gpt(num_layers=layers, width=width), batch)
        yield Run(
            source="Narayanan 2021, table 1",
            row=name,
            config=gpt(*GPT_SIZES[name]),
            gpu="A100",
            seconds=flops / gpus / teraflops / 1e12,
            seq_len=2048,
            batch=batch,
            micro_batch=micro,
            mesh=mesh(tp, pp, gpus // (tp * pp)),
            schedule="interleaved" if virtual > 1 else "1f1b",
            virtual=virtual,
            recompute="full",
            plan=MEGATRON,
        )


def narayanan_table_2() -> Iterator[Run]:
    """2104.04473, table 2: ZeRO-3 without model parallelism (DeepSpeed), and tensor and pipeline parallel."""
    for size, heads, pp, gpus, batch, micro, teraflops in (
        ((96, 12288), 96, 0, 384, 1536, 4, 144),
        ((96, 12288), 96, 0, 768, 1536, 2, 88),
        ((96, 12288), 96, 0, 1536, 1536, 1, 44),
        ((105, 20480), 128, 0, 640, 2560, 4, 138),
        ((105, 20480), 128, 0, 1120, 2240, 2, 98),
        ((105, 20480), 128, 0, 2240, 2240, 1, 48),
        ((96, 12288), 96, 12, 384, 1536, 1, 153),
        ((96, 12288), 96, 12, 768, 1536, 1, 149),
        ((96, 12288), 96, 12, 1536, 1536, 1, 141),
        ((105, 20480), 128, 35, 560, 2240, 1, 171),
        ((105, 20480), 128, 35, 1120, 2240, 1, 167),
        ((105, 20480), 128, 35, 2240, 2240, 1, 159),
    ):
        layers, width = size
        flops = gpt_step_flops(Gpt(num_layers=layers, width=width), batch)
        yield Run(
            source="Narayanan 2021, table 2",
            row=f"{'TP 8 x PP ' + str(pp) if pp else 'ZeRO-3'}, {'175B' if layers == 96 else '530B'}, {gpus}",
            config=gpt(layers, width, heads),
            gpu="A100",
            seconds=flops / gpus / teraflops / 1e12,
            seq_len=2048,
            batch=batch,
            micro_batch=micro,
            mesh=mesh(8, pp, gpus // (8 * pp)) if pp else mesh(1, 1, gpus, shard=True),
            zero=0 if pp else 3,
            recompute="full",
            plan=MEGATRON if pp else {"fused_attention": False},
        )


def korthikanti() -> Iterator[Run]:
    """2205.05198, tables 3 and 5: full recomputation, and sequence parallel with selective."""
    for name, size, pp, virtual, batch, micro, full, present in (
        ("22B", (48, 6144, 64), 1, 1, 4, 4, 1.42, 1.10),
        ("175B", (96, 12288, 96), 8, 3, 64, 1, 18.13, 13.75),
        ("530B", (105, 20480, 128), 35, 3, 280, 1, 49.05, 37.83),
        ("1T", (128, 25600, 160), 64, 1, 512, 1, 94.42, 71.49),
    ):
        recomputes: tuple[tuple[Recompute, float], ...] = (("full", full), ("selective", present))
        for recompute, seconds in recomputes:
            yield Run(
                source="Korthikanti 2022, table 5",
                row=f"{name}, {recompute}",
                config=gpt(*size),
                gpu="A100",
                seconds=seconds,
                seq_len=2048,
                batch=batch,
                micro_batch=micro,
                mesh=mesh(8, pp, 1),
                schedule="interleaved" if virtual > 1 else "1f1b",
                virtual=virtual,
                recompute=recompute,
                plan=MEGATRON,
            )


def mt_nlg() -> Iterator[Run]:
    """2201.11990, section 2.4: 530B, TP 8 x PP 35, batch 1,920 on 280, 350 and 420 DGX A100."""
    for nodes, seconds in ((280, 60.1), (350, 50.2), (420, 44.4)):
        yield Run(
            source="MT-NLG, section 2.4",
            row=f"{nodes} servers",
            config=gpt(105, 20480, 128),
            gpu="A100",
            seconds=seconds,
            seq_len=2048,
            batch=1920,
            micro_batch=1,
            mesh=mesh(8, 35, nodes // 35),
            recompute="full",
            plan=MEGATRON,
        )


_Found = tuple[tuple[Schedule, int, tuple[float, float, float]], ...]


def zero_bubble() -> Iterator[Run]:
    """2401.10241, tables 3, 4 and 6; samples a GPU and second. (ZB-1p and ZB-2p are schedules that torch
    lacks.)"""
    for name, size, pp, micro, virtual, counts, plain, interleaved in (
        ("1.5B", (22, 2304, 24), 8, 6, 3, (24, 32, 64), (11.8, 12.5, 13.6), (13.1, 13.4, 13.9)),
        ("6.2B", (30, 4096, 32), 8, 3, 4, (24, 32, 64), (3.50, 3.70, 4.03), (4.01, 4.08, 4.19)),
        ("14.6B", (46, 5120, 40), 16, 1, 3, (48, 64, 128), (1.40, 1.49, 1.64), (1.54, 1.59, 1.66)),
        ("28.3B", (62, 6144, 48), 32, 1, 2, (96, 128, 256), (0.76, 0.80, 0.88), (0.82, 0.85, 0.90)),
    ):
        both: _Found = (("1f1b", 1, plain), ("interleaved", virtual, interleaved))
        for schedule, num, found in both:
            for count, samples in zip(counts, found, strict=True):
                yield _zero_bubble(f"table 4: {name}", size, (pp, micro, count), (schedule, num), samples)
    for name, size, pp, micro, counts, plain, v_shaped in (
        ("6.2B", (30, 4096, 32), 16, 6, (48, 64, 128), (3.38, 3.57, 3.91), (4.15, 4.21, 4.35)),
        ("14.6B", (46, 5120, 40), 24, 2, (72, 96, 192), (1.52, 1.61, 1.76), (1.85, 1.88, 1.93)),
        ("28.3B", (62, 6144, 48), 32, 2, (96, 128, 256), (0.82, 0.87, 0.95), (1.01, 1.02, 1.06)),
    ):
        both: _Found = (("1f1b", 1, plain), ("zbv", 2, v_shaped))
        for schedule, num, found in both:
            for count, samples in zip(counts, found, strict=True):
                yield _zero_bubble(f"table 6: {name}", size, (pp, micro, count), (schedule, num), samples)


def _zero_bubble(
    row: str,
    size: tuple[int, int, int],
    pipeline: tuple[int, int, int],
    schedule: tuple[Schedule, int],
    samples: float,
) -> Run:
    pp, micro, count = pipeline
    return Run(
        source="Zero Bubble 2024, tables 4 and 6",
        row=f"{row}, {schedule[0]}, {count} x {micro} on {pp}",
        config=gpt(*size),
        gpu="A100",
        seconds=micro * count / samples / pp,
        seq_len=1024,
        batch=micro * count,
        micro_batch=micro,
        mesh=mesh(1, pp, 1),
        schedule=schedule[0],
        virtual=schedule[1],
        ends_lighter=1,
        plan=MEGATRON,
    )


def megascale() -> Iterator[Run]:
    """2402.15627, table 2: 175B, TP 8 x PP 8 with 6 stages a rank; Megatron-LM, and MegaScale, which
    overlaps."""
    for batch, gpus, plain, overlapped in (
        (768, 256, 40.0, 32.0),
        (768, 512, 21.2, 16.5),
        (768, 768, 15.2, 11.5),
        (768, 1024, 11.9, 8.9),
        (6144, 3072, 29.02, 23.66),
        (6144, 6144, 14.78, 12.21),
        (6144, 8192, 12.24, 9.56),
        (6144, 12288, 8.57, 6.34),
    ):
        for system, seconds in (("Megatron-LM", plain), ("MegaScale", overlapped)):
            yield Run(
                source="MegaScale, table 2",
                row=f"{system}, {gpus}",
                config=gpt(96, 12288, 128, 64_000),
                gpu="A100",
                seconds=seconds,
                seq_len=2048,
                batch=batch,
                micro_batch=1,
                mesh=mesh(8, 8, gpus // 64),
                schedule="interleaved",
                virtual=6,
                async_tp=system == "MegaScale",
                zero=2,
                recompute="selective" if system == "Megatron-LM" else "none",
                plan={**MEGATRON, "overlap": 0.0} if system == "Megatron-LM" else {"fused_gradients": True},
            )


def llama_3() -> Iterator[Run]:
    """2407.21783, table 4, with cp 16 x dp 8 as its text and 16,384 GPUs have it: 405B, interleaved."""
    config = llama("405B")
    for gpus, cp, dp, seq_len, rows, teraflops in (
        (8192, 1, 64, 8192, 32, 430),
        (16384, 1, 128, 8192, 16, 400),
        (16384, 16, 8, 131072, 16, 380),
    ):
        batch = rows * dp
        yield Run(
            source="Llama 3, table 4",
            row=f"{gpus}, cp {cp}",
            config=config,
            gpu="H100",
            seconds=flops_per_token(config, seq_len) * batch * seq_len / gpus / teraflops / 1e12,
            seq_len=seq_len,
            batch=batch,
            micro_batch=1,
            mesh=mesh(8, 16, dp, cp, shard=True),
            schedule="interleaved",
            virtual=8,
            ends_lighter=1,
            zero=2,
        )


_CP: Final = ((1, 32768), (2, 65536), (4, 131072), (8, 262144))


def torchtitan() -> Iterator[Run]:
    """torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, all rows of tables 1 to 6: H100 of 500 W with
    2.4 TB/s; tokens a second and GPU. A pipeline has as many micro-batches as ranks, torchtitan's default
    then."""
    for table, dp, batch, found in ((1, 8, 16, (5762, 6667, 8532)), (3, 128, 256, (5605, 6514, 8380))):
        for name, tokens in zip(("eager", "compiled", "float8"), found, strict=True):
            yield _torchtitan(
                f"{table} {name}",
                ("8B", 8192, mesh(1, 1, dp, shard=True), batch, 2),
                tokens,
                recompute="selective",
                float8=name == "float8",
                compiled=name != "eager",
            )
    for (cp, seq_len), tokens in zip(_CP, (3890, 2540, 1071, 548), strict=True):
        spread = mesh(1, 1, 8 // cp, cp, shard=True)
        yield _torchtitan(f"2 cp {cp}", ("8B", seq_len, spread, 8 // cp, 1), tokens)
    for name, tokens in (("2D", 829), ("2D async", 876)):
        of_70b = ("70B", 8192, mesh(8, 1, 32, shard=True), 512, 16)
        yield _torchtitan(f"4 {name}", of_70b, tokens, async_tp=name == "2D async")
    of_405b = ("405B", 8192, mesh(8, 8, 8, shard=True), 256, 4)
    yield _torchtitan("5 1F1B", of_405b, 100, async_tp=True)
    yield _torchtitan("5 interleaved", of_405b, 128, async_tp=True, schedule="interleaved", ends_lighter=1)
    for (cp, seq_len), tokens in zip(_CP, (76, 47, 31, 16), strict=True):
        spread = mesh(8, 8, 8 // cp, cp, shard=True)
        yield _torchtitan(f"6 cp {cp}", ("405B", seq_len, spread, 8 * (8 // cp), 1), tokens, async_tp=True)


def _torchtitan(row: str, what: tuple[str, int, Mesh, int, int], tokens: float, **changes: Any) -> Run:
    size, seq_len, spread, batch, micro = what
    known: dict[str, Any] = {"recompute": "full", "float8": True, "zero": 3} | changes
    return Run(
        source="torchtitan 2024, tables 1 to 6",
        row=row,
        config=llama(size),
        gpu="H100-96GB",
        seconds=batch * seq_len / tokens / spread.num_workers,
        seq_len=seq_len,
        batch=batch,
        micro_batch=micro,
        mesh=spread,
        **known,
    )


def _experts(
    layers: int, width: int, heads: tuple[int, int, int], experts: tuple[int, int, int]
) -> ModelConfig:
    (num_heads, num_kv_heads, head_dim), (num, top_k, hidden) = heads, experts
    return ModelConfig(
        num_layers=layers,
        width=width,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        vocab_size=201_088 if width == 2880 else 151_936,
        experts=Experts(num_experts=num, top_k=top_k, hidden=hidden),
    )


_DEEPSEEK_V3: Final = from_hugging_face(DEEPSEEK_V3, where="config.json", kinds=PLANNED_KINDS)
_MODELS: Final = {
    "8B": llama("8B"),
    "70B": llama("70B"),
    "405B": llama("405B"),
    "V3": _DEEPSEEK_V3,
    # With the layer that predicts a second token (2412.19437, section 2.2).
    "V3 MTP": replace(_DEEPSEEK_V3, num_layers=_DEEPSEEK_V3.num_layers + 1),
    "Qwen3 30B": _experts(48, 2048, (32, 4, 128), (128, 8, 768)),
    "Qwen3 235B": _experts(94, 4096, (64, 4, 128), (128, 8, 1536)),
    # Half of its layers see 128 tokens back alone, which no plan knows.
    "GPT OSS 120B": _experts(36, 2880, (64, 8, 64), (128, 4, 2880)),
}
_BRIDGE: Final = {
    "GB300": """
25.11 | 8B | FP8-CS | 8 128 2 8192 | 0 1 1 1 1 1 | 37556
25.11 | 8B | FP8-MX | 8 128 2 8192 | 0 1 1 1 1 1 | 36108
25.11 | 70B | FP8-CS | 64 256 2 8192 | 1 1 1 1 1 1 | 4520
25.11 | 405B | FP8-CS | 256 1536 1 8192 | 0 2 8 2 4 1 | 999
25.11 | V3 | BF16 | 256 4096 1 4096 | 0 1 2 1 4 32 | 3848
25.11 | V3 | FP8-MX | 256 4096 1 4096 | 0 1 2 1 4 32 | 4357
25.11 | GPT OSS 120B | BF16 | 64 1280 2 8192 | 0 1 1 1 1 64 | 18347
25.11 | Qwen3 30B | FP8-MX | 8 512 4 4096 | 0 1 1 1 1 8 | 28934
25.11 | Qwen3 235B | BF16 | 256 8192 2 4096 | 0 1 4 1 12 16 | 6131
26.02 | 70B | FP8-CS | 64 256 2 8192 | 1 1 1 1 1 1 | 5003
26.02 | 70B | FP8-MX | 64 256 1 8192 | 0 1 4 1 5 1 | 4596
26.02 | 405B | FP8-CS | 256 1536 1 8192 | 0 4 8 1 4 1 | 988
26.02 | 405B | FP8-MX | 256 1536 1 8192 | 0 2 8 2 4 1 | 931
26.02 | V3 MTP | FP8-MX | 256 4096 2 4096 | 0 1 2 1 8 32 | 4612
26.02 | GPT OSS 120B | BF16 | 64 1280 4 4096 | 0 1 1 1 1 64 | 19412
26.02 | Qwen3 30B | FP8-MX | 8 512 8 4096 | 0 1 1 1 1 8 | 30376
26.02 | Qwen3 235B | FP8-MX | 256 8192 2 4096 | 0 1 4 1 1 32 | 6583
""",
    "GB200": """
25.09 | 8B | FP8-CS | 8 128 2 8192 | 0 1 1 1 1 1 | 31357
25.09 | 8B | FP8-MX | 8 128 2 8192 | 0 1 1 1 1 1 | 29925
25.09 | 70B | FP8-CS | 64 128 2 8192 | 1 1 1 1 1 1 | 3986
25.09 | 70B | FP8-MX | 64 128 2 8192 | 0 2 4 1 5 1 | 3546
25.09 | 405B | FP8-CS | 128 64 1 8192 | 1 2 1 1 1 1 | 729
25.09 | 405B | FP8-MX | 128 64 1 8192 | 0 4 8 2 8 1 | 578
25.09 | V3 MTP | FP8-CS | 256 2048 1 4096 | 0 1 4 1 4 64 | 3454
25.09 | Qwen3 30B | FP8-CS | 8 512 4 4096 | 0 1 1 1 1 8 | 22775
25.09 | Qwen3 30B | FP8-MX | 8 512 4 4096 | 0 1 1 1 1 8 | 23723
25.09 | Qwen3 235B | FP8-CS | 64 1024 1 4096 | 0 2 1 1 1 64 | 4452
25.09 | Qwen3 235B | FP8-MX | 64 1024 1 4096 | 0 2 1 1 1 64 | 4416
25.11 | 8B | FP8-CS | 8 128 2 8192 | 0 1 1 1 1 1 | 31508
25.11 | 8B | FP8-MX | 8 128 2 8192 | 0 1 1 1 1 1 | 29789
25.11 | 70B | FP8-CS | 64 256 2 8192 | 1 1 1 1 1 1 | 4312
25.11 | 405B | FP8-CS | 256 1536 1 8192 | 0 4 16 1 4 1 | 813
25.11 | V3 | BF16 | 256 4096 1 4096 | 0 1 4 1 4 64 | 3139
25.11 | V3 | FP8-MX | 256 4096 1 4096 | 0 1 8 1 4 32 | 4018
25.11 | GPT OSS 120B | BF16 | 64 1280 1 8192 | 0 1 1 1 1 64 | 15876
25.11 | Qwen3 30B | FP8-MX | 8 512 4 4096 | 0 1 1 1 1 8 | 23766
25.11 | Qwen3 235B | BF16 | 256 8192 1 4096 | 0 1 8 1 3 32 | 4916
26.02 | 70B | FP8-CS | 64 256 2 8192 | 1 1 1 1 1 1 | 4040
26.02 | 70B | FP8-MX | 64 256 1 8192 | 0 2 4 1 5 1 | 3887
26.02 | 405B | FP8-CS | 256 1536 1 8192 | 0 4 16 1 4 1 | 793
26.02 | V3 MTP | FP8-MX | 256 4096 1 4096 | 0 1 4 1 4 64 | 3955
26.02 | GPT OSS 120B | BF16 | 64 1280 4 4096 | 0 1 1 1 1 64 | 15784
26.02 | Qwen3 30B | FP8-MX | 8 512 4 4096 | 0 1 1 1 1 8 | 26084
26.02 | Qwen3 235B | FP8-MX | 256 8192 1 4096 | 0 1 8 1 1 32 | 5448
""",
    "B300": """
26.02 | V3 MTP | FP8-MX | 256 4096 1 4096 | 0 1 16 1 1 8 | 2983
26.02 | GPT OSS 120B | BF16 | 64 1280 4 4096 | 0 1 1 1 1 64 | 8359
26.02 | Qwen3 30B | FP8-MX | 8 512 8 4096 | 0 1 1 1 1 8 | 29521
26.02 | Qwen3 235B | FP8-MX | 256 8192 1 4096 | 0 1 8 1 4 8 | 2691
""",
    "B200": """
25.09 | 8B | FP8-CS | 8 128 2 8192 | 0 1 1 1 1 1 | 29994
25.09 | 8B | FP8-MX | 8 128 2 8192 | 0 1 1 1 1 1 | 29388
25.09 | 405B | FP8-CS | 128 64 1 8192 | 0 4 8 2 8 1 | 664
25.09 | 405B | FP8-MX | 128 64 1 8192 | 0 4 8 2 8 1 | 622
25.09 | V3 MTP | FP8-CS | 256 2048 1 4096 | 0 1 16 1 1 8 | 2265
25.09 | V3 MTP | FP8-MX | 256 2048 1 4096 | 0 1 16 1 1 8 | 2159
25.09 | Qwen3 30B | FP8-CS | 8 512 1 4096 | 0 1 1 1 1 8 | 18066
25.09 | Qwen3 235B | FP8-CS | 64 1024 1 4096 | 0 1 8 1 2 8 | 4104
25.09 | Qwen3 235B | FP8-MX | 64 1024 1 4096 | 0 1 8 1 2 8 | 4275
25.11 | 8B | FP8-CS | 8 128 2 8192 | 0 1 1 1 1 1 | 30624
25.11 | 8B | FP8-MX | 8 128 2 8192 | 0 1 1 1 1 1 | 29521
25.11 | 405B | FP8-CS | 128 64 1 8192 | 0 4 8 2 8 1 | 661
25.11 | 405B | FP8-MX | 128 64 1 8192 | 0 4 8 2 8 1 | 624
25.11 | V3 MTP | FP8-MX | 256 2048 1 4096 | 0 1 16 1 1 8 | 2139
25.11 | GPT OSS 120B | BF16 | 64 512 4 4096 | 0 1 1 1 1 8 | 8213
25.11 | Qwen3 30B | FP8-MX | 8 512 1 4096 | 0 1 1 1 1 8 | 9299
25.11 | Qwen3 235B | FP8-MX | 64 1024 1 4096 | 0 1 8 1 2 8 | 3269
26.02 | V3 MTP | FP8-MX | 256 4096 1 4096 | 0 1 16 1 1 8 | 2689
26.02 | GPT OSS 120B | BF16 | 64 1280 4 4096 | 0 1 1 1 1 64 | 8047
26.02 | Qwen3 30B | FP8-MX | 8 512 1 4096 | 0 1 1 1 1 8 | 9691
26.02 | Qwen3 235B | FP8-MX | 256 8192 1 4096 | 0 1 8 1 1 8 | 3805
""",
    "H100": """
25.09 | 8B | FP8-CS | 8 128 1 8192 | 1 1 1 1 1 1 | 14079
25.09 | 70B | FP8-CS | 64 128 1 8192 | 0 4 8 1 5 1 | 1619
25.09 | 405B | FP8-CS | 1024 512 1 8192 | 0 8 8 2 8 1 | 302
25.09 | V3 MTP | FP8-CS | 1024 8192 1 4096 | 0 2 8 1 4 64 | 1297
25.09 | Qwen3 30B | FP8-CS | 16 512 2 4096 | 0 1 2 1 24 8 | 10494
25.09 | Qwen3 235B | FP8-CS | 256 2048 1 4096 | 0 2 8 1 4 32 | 1204
25.11 | 8B | FP8-CS | 8 128 1 8192 | 1 1 1 1 1 1 | 14451
25.11 | 70B | FP8-CS | 64 128 1 8192 | 0 4 8 1 5 1 | 1602
25.11 | 405B | FP8-CS | 1024 512 1 8192 | 0 8 8 2 8 1 | 292
25.11 | GPT OSS 120B | BF16 | 64 512 4 4096 | 0 1 4 1 1 8 | 5630
25.11 | Qwen3 30B | FP8-CS | 16 512 2 4096 | 0 1 2 1 24 8 | 5275
25.11 | Qwen3 235B | FP8-CS | 256 2048 1 4096 | 0 2 8 1 4 32 | 1575
26.02 | 70B | FP8-CS | 64 256 1 8192 | 0 4 8 1 5 1 | 1621
26.02 | 405B | FP8-CS | 1024 1536 1 8192 | 0 8 8 2 8 1 | 311
26.02 | GPT OSS 120B | BF16 | 64 1280 1 4096 | 0 1 4 1 1 8 | 5993
26.02 | Qwen3 30B | FP8-CS | 16 1024 1 4096 | 0 1 2 1 12 8 | 2557
26.02 | Qwen3 235B | FP8-CS | 256 8192 1 4096 | 0 2 8 1 4 32 | 1633
""",
}
"""By system; release, model, precision; GPUs, batch, micro-batch, sequence; FSDP, TP, PP, CP, VP, EP; tokens a
second and GPU."""


def megatron_bridge() -> Iterator[Run]:
    """NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md at df0289c, containers 25.09, 25.11 and 26.02,
    each row but six: NVFP4, in which nothing is planned here (four), a pipeline of 128 stages with the
    embedding and the loss as layers, and one whose 64 expert peers are more than its 32 ranks a stage. Of 25.09,
    where bars part two layouts, the second is FP8-MX's. The 25.11 row of Qwen3 235B on H100 is as the archive has it.

    Experts are in float8 there and in bfloat16 here. H100's 26.02 row of Qwen3 30B gives half the tokens that
    its 118 TF are."""
    for gpu, rows in _BRIDGE.items():
        for line in rows.strip().splitlines():
            release, name, precision, sizes, axes, tokens = (part.strip() for part in line.split("|"))
            num_gpus, batch, micro, seq_len = map(int, sizes.split())
            fsdp, tp, pp, cp, virtual, ep = map(int, axes.split())
            dp = num_gpus // (tp * pp * cp)
            yield Run(
                source=f"Megatron Bridge, {'25.09' if release == '25.09' else '25.11 and 26.02'}",
                row=f"{gpu}, {release}, {name}, {precision}, {axes}",
                config=_MODELS[name],
                gpu=gpu,
                seconds=batch * seq_len / int(tokens) / num_gpus,
                seq_len=seq_len,
                batch=batch,
                micro_batch=micro,
                mesh=Mesh(dp_replicate=1, dp_shard=dp, tp=tp, pp=pp, cp=cp, ep=ep),
                schedule="interleaved" if virtual > 1 else "1f1b",
                virtual=virtual,
                zero=3 if fsdp else 1,
                float8=precision != "BF16",
                async_tp=tp > 1,
                plan={"fused_gradients": True, "rails": 8},
            )


RUNS: Final = tuple(
    run
    for runs in (
        narayanan_table_1,
        narayanan_table_2,
        korthikanti,
        mt_nlg,
        zero_bubble,
        megascale,
        llama_3,
        torchtitan,
        megatron_bridge,
    )
    for run in runs()
)

CALIBRATED: Final = (
    "Narayanan 2021, table 1",
    "Narayanan 2021, table 2",
    "Zero Bubble 2024, tables 4 and 6",
    "torchtitan 2024, tables 1 to 6",
)
"""Sources to whose rows the constants of trainer.planning.gpus and trainer.planning.products were fitted."""
SEEN: Final = (
    "16384, cp 16",
    *(run.row for run in megatron_bridge() if run.source != "Megatron Bridge, 25.09"),
)
"""Rows of other sources that were looked at when a constant was set (attention under context parallel; what a
GB300 reaches, how groups lie in a rack, what routing moves)."""
