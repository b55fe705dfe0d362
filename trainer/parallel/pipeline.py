"""Pipeline parallel: the layers in stages, and the schedules of torch.distributed.pipelining over them.

    1f1b, gpipe                          one stage a rank
    interleaved, interleaved_zero_bubble several a rank: rank r has the stages r, r + pp, r + 2·pp, …
    zbv, dualpipev                       two a rank: r and 2·pp - 1 - r, so that rank 0 has the first and the last

Whatever the schedule, a stage's forward passes come in the order of the micro-batches. Every rank reads the
rows of its batch, since each stage needs the masks of their documents; the tokens go into the first stage and
the labels into the last only. Shapes between stages are said beforehand: torch would find them with another
forward and backward pass."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
from torch.distributed.pipelining.stage import _RecvInfo
from torch.distributed.tensor import DTensor, Shard

from trainer.model.loss import Losses
from trainer.model.peers import local_part
from trainer.model.rows import DeviceRows, MicroBatch
from trainer.model.transformer import CausalLM, LayerSpan
from trainer.recipe_tables.parallelism import PipelineTable, rank_of_stage
from trainer.telemetry.timing import PhaseClock

Pass = Literal["forward", "loss", "backward"]
Timed = Callable[[], AbstractContextManager[None]]
"""What is entered while a stage computes."""

_TORCH_NAMES: Final = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}


def spans(num_layers: int, num_ranks: int, table: PipelineTable) -> tuple[LayerSpan, ...]:
    """The layers of each stage."""
    sizes = table.stage_layers(num_layers, num_ranks)
    ends = list(itertools.accumulate(sizes))
    return tuple(
        LayerSpan(first=end - size, end=end, has_embedding=stage == 0, has_output=stage == len(sizes) - 1)
        for stage, (size, end) in enumerate(zip(sizes, ends, strict=True))
    )


class Stage(nn.Module):
    """A span of the model as a schedule calls it: from the stream of the stage before to its own, plain
    tensors."""

    def __init__(self, causal_lm: CausalLM, index: int, tensor_mesh: DeviceMesh | None) -> None:
        super().__init__()
        self.causal_lm = causal_lm
        self.index = index
        self._tensor_mesh = tensor_mesh
        self._micro_of: Callable[[int], MicroBatch] | None = None
        self._add: Callable[[MicroBatch, Losses], None] | None = None
        self._enter: Callable[[Pass], None] = lambda phase: None
        self._next = 0

    def begin(
        self,
        micro_of: Callable[[int], MicroBatch],
        add: Callable[[MicroBatch, Losses], None],
        enter: Callable[[Pass], None] = lambda phase: None,
    ) -> None:
        """A step begins: the calls of forward that follow are for micro-batch 0, 1, …; on the last stage `add` is
        given the losses of each."""
        self._micro_of, self._add, self._enter, self._next = micro_of, add, enter, 0

    def forward(self, stream: Tensor) -> Tensor:
        """The stream (B, T, D) after this stage, or the objective; `stream` is not looked at by the first
        stage."""
        assert self._micro_of is not None and self._add is not None, "begin comes first"
        self._enter("forward")
        self.causal_lm.when_loss_begins = functools.partial(self._enter, "loss")
        micro = self._micro_of(self._next)
        self._next += 1
        if self.causal_lm.span.has_embedding:
            stream = micro.rows.inputs_BT
        elif self._tensor_mesh is not None:
            stream = DTensor.from_local(stream, self._tensor_mesh, [Shard(1)], run_check=False)
        output = self.causal_lm(stream, micro.rows.positions_BT, micro.masks, micro.routing, micro.targets)
        if isinstance(output, Losses):
            self._add(micro, output)
            output = output.objective
        elif isinstance(output, DTensor):
            # A schedule that splits backward detaches what a stage gives in place, which a view forbids.
            output = output.to_local().clone()
        self._enter("backward")
        return cast(Tensor, output)


class _TimedStage(PipelineStage):
    """torch's stage, which says when it computes: what lies between is messages and waiting for them.

    torch makes the places for what comes from both neighbours before the first step, one for each
    micro-batch, and keeps them. Here each is made when its message is asked for and left to the pass that
    takes it: with many micro-batches the places would be more than the activations. So would be what the
    stage gave, which torch keeps until backward: once it is on its way, the message alone has it."""

    timed: Timed = nullcontext

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_forward_infra(*args, **kwargs)
        for places in self.args_recv_info.values():
            _give_back(places)
        return prepared

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_backward_infra(*args, **kwargs)
        for places in self.grad_recv_info.values():
            _give_back(places)
        return prepared

    def _get_recv_ops(self, recv_infos: tuple[_RecvInfo, ...]) -> list[dist.P2POp]:
        for place in recv_infos:
            if place.buffer is None and place.tensor_meta is not None and not place.is_root_arg:
                place.buffer = torch.empty(
                    place.tensor_meta.shape, dtype=place.tensor_meta.dtype, device=self.device
                )
        return super()._get_recv_ops(recv_infos)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        sent = super().get_fwd_send_ops(fwd_chunk_id)
        given, _ = self.fwd_cache[fwd_chunk_id]
        if sent:  # the last stage sends nothing: it gives losses
            for output in given:
                # Backward begins at this tensor and reads its shape alone. torch sends a detached one.
                output.data = output.new_empty(()).expand(output.shape)
        return sent

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self.timed():
            output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        _give_back(self.args_recv_info[fwd_chunk_id])
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        with self.timed():
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        _give_back(self.grad_recv_info[bwd_chunk_id])

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.timed():
            return super().backward_weight_one_chunk(*args, **kwargs)


def _give_back(places: tuple[_RecvInfo, ...]) -> None:
    for place in places:
        place.buffer = None


class Pipeline:
    """This rank's stages, and the schedule that runs them together with the other ranks of `group`.

    `empty_stream(micro, device)`: a tensor of what passes between stages for a micro-batch, without
    values."""

    def __init__(
        self,
        stages: Sequence[Stage],
        num_stages: int,
        table: PipelineTable,
        group: dist.ProcessGroup,
        empty_stream: Callable[[MicroBatch, torch.device], Tensor],
    ) -> None:
        self.stages = {stage.index: stage for stage in stages}
        self._num_stages, self._table, self._group = num_stages, table, group
        self._device = next(stages[0].parameters()).device
        self._empty_stream = empty_stream
        self._schedule: Any = None
        self._timed_stages: Sequence[_TimedStage] = ()

    @property
    def has_output(self) -> bool:
        """Whether the last stage is this rank's: the losses are known here."""
        return self._num_stages - 1 in self.stages

    def step(
        self,
        batch: Sequence[DeviceRows],
        share_of: Callable[[DeviceRows], MicroBatch],
        add: Callable[[MicroBatch, Losses], None],
        clock: PhaseClock,
    ) -> None:
        """Forward, loss and backward of all micro-batches of a step, whose shapes are those of every step; `add`
        is given each one's losses where they are known. Gradients stay whole until the last one. Collective."""
        num_micro_batches, timed = len(batch), clock.stage_pass
        # Each stage of this rank asks for each micro-batch.
        micro_of = functools.cache(lambda index: share_of(batch[index]))

        for stage in self.stages.values():
            stage.begin(micro_of, add, clock.enter)
        if self._schedule is None:
            self._schedule = self._make_schedule(num_micro_batches, micro_of(0))
        for timed_stage in self._timed_stages:
            timed_stage.timed = timed
        first = (torch.zeros(num_micro_batches, device=self._device),) if 0 in self.stages else ()
        # A schedule wants a target for each, whoever computed the losses.
        target = torch.arange(num_micro_batches) if self.has_output else None
        self._schedule.step(*first, target=target, return_outputs=False)

    def forward(self, micro: MicroBatch) -> Losses | None:
        """The losses of one micro-batch on the last stage's rank, None on the others. Collective.

        torch's schedules cannot all evaluate (ZBV and DualPipeV fail), and this needs no schedule: each rank
        takes its stages in their order, so some rank can always go on."""
        found: list[Losses] = []
        stream: Tensor | None = None
        for index in sorted(self.stages):
            before, after = (
                rank_of_stage(self._table.schedule, near, self._group.size())
                for near in (index - 1, index + 1)
            )
            if index == 0:
                stream = micro.rows.inputs_BT
            elif before != self._group.rank():
                stream = self._empty_stream(micro, self._device)
                dist.recv(stream, group=self._group, group_src=before)
            stage = self.stages[index]
            stage.begin(lambda _: micro, lambda _, losses: found.append(losses))
            stream = cast(Tensor, stage(stream))
            if index + 1 < self._num_stages and after != self._group.rank():
                dist.send(stream.contiguous(), group=self._group, group_dst=after)
        return found[0] if found else None

    def _make_schedule(self, num_micro_batches: int, like: MicroBatch) -> Any:
        kind = get_schedule_class(_TORCH_NAMES[self._table.schedule])
        stream = self._empty_stream(like, torch.device("meta")).requires_grad_()
        self._timed_stages = stages = [
            _TimedStage(
                stage,
                index,
                self._num_stages,
                self._device,
                # With these no pass is run to find them: the loss is computed once for each micro-batch, no
                # more.
                input_args=torch.empty(1, device="meta") if index == 0 else stream,
                output_args=stream,
                group=self._group,
            )
            for index, stage in sorted(self.stages.items())
        ]
        of_rank = stages[0] if issubclass(kind, PipelineScheduleSingle) else stages
        return kind(cast(Any, of_rank), num_micro_batches, loss_fn=_given, scale_grads=False)


def _given(objective: Tensor, _: Tensor) -> Tensor:
    return objective


class TiedEnds:
    """The input embedding on the first stage and the equal output matrix on the last: one parameter in two
    places.

    Both get the sum of their gradients. Where one rank has both stages it updates the one and copies it to
    the other; else both are updated alike, and stay equal to the bit."""

    def __init__(
        self, embedding: nn.Parameter | None, output: nn.Parameter | None, ends: dist.ProcessGroup | None
    ) -> None:
        self._embedding, self._output = embedding, output
        self._ends = ends

    @property
    def counted_elsewhere(self) -> tuple[nn.Parameter, ...]:
        """Parameters of this rank whose gradient another rank counts in the norm."""
        return (self._output,) if self._output is not None and self._embedding is None else ()

    def sum_gradients(self) -> None:
        """After a step's last backward pass. Collective over the ends."""
        if self._embedding is not None and self._output is not None:
            assert self._embedding.grad is not None
            self._embedding.grad += cast(Tensor, self._output.grad)
            self._output.grad = None
        elif (mine := self._embedding if self._embedding is not None else self._output) is not None:
            dist.all_reduce(local_part(cast(Tensor, mine.grad)), group=self._ends)

    @torch.no_grad()
    def copy(self) -> None:
        """After the weights have changed."""
        if self._embedding is not None and self._output is not None:
            self._output.copy_(self._embedding)


def tied_ends(stages: Sequence[Stage], ends: dist.ProcessGroup | None) -> TiedEnds:
    """Of these stages' ends those that are there."""
    embedding = next(
        (s.causal_lm.model.embed_tokens for s in stages if s.causal_lm.model.embed_tokens is not None), None
    )
    output = next((s.causal_lm.lm_head for s in stages if s.causal_lm.lm_head is not None), None)
    return TiedEnds(
        None if embedding is None else cast(nn.Parameter, embedding.weight),
        None if output is None else cast(nn.Parameter, output.weight),
        ends,
    )
