"""The loss beside torch's cross entropy over whole logits: seconds of forward and backward, and the peak of memory.

Each side is a process of its own, in turns; the time is the processor's of one thread, or a GPU's. Memory is what the
process, or the GPU's allocator, has at most beyond the stream, the output matrix and the labels: so the gradients of
the first two are in it, and are told apart.

    python -m benchmarks.loss [--tokens 8192] [--plain-tokens 2048] [--width 1024] [--vocabulary 128256] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.loss import Head, Losses, Targets


class Measured(NamedTuple):
    """Of one process: seconds, bytes at most, bytes of both gradients, the loss."""

    seconds: float
    peak: int
    gradients: int
    loss: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument(
        "--plain-tokens", type=int, default=2048, help="of the plain side, and of both for time"
    )
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=("pieces", "plain"))
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options)))
        return
    seconds: dict[str, list[float]] = {"pieces": [], "plain": []}
    memory: dict[str, str] = {}
    for _ in range(options.rounds):
        for side, taken in seconds.items():
            found = child(options, side, options.plain_tokens)
            taken.append(found.seconds)
            memory[f"{side}, {options.plain_tokens:,} tokens"] = described(found)
    memory[f"pieces, {options.tokens:,} tokens"] = described(child(options, "pieces", options.tokens))
    pieces, plain = (statistics.median(taken) for taken in seconds.values())
    print(f"{options.dtype}, {options.width} x {options.vocabulary:,}, {options.plain_tokens:,} tokens:")
    print(f"{pieces:.2f} s beside {plain:.2f} of the plain loss, ratio {pieces / plain:.3f}")
    for name, text in memory.items():
        print(f"{name}: {text}")


def described(found: Measured) -> str:
    """Its memory and its loss in words."""
    beyond = found.peak - found.gradients
    return f"{found.peak / 1e9:.2f} GB, {beyond / 1e9:.2f} beyond the two gradients; loss {found.loss:.6f}"


def child(options: argparse.Namespace, side: str, num_tokens: int) -> Measured:
    """One side in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loss", "--side", side, "--tokens", str(num_tokens)]
    command += [
        "--width",
        str(options.width),
        "--vocabulary",
        str(options.vocabulary),
        "--dtype",
        options.dtype,
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Measured(*json.loads(done.stdout.splitlines()[-1]))


def measure(options: argparse.Namespace) -> Measured:
    """This process's own side, after a pass over few tokens that loads what products need."""
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = getattr(torch, options.dtype)
    torch.manual_seed(0)
    head = Head(options.width, options.vocabulary, cap=None, z_loss=0.0)
    torch.nn.init.normal_(head.weight, 0.0, 0.02)
    head = head.to(device, dtype)
    x_BTD = torch.randn(1, options.tokens, options.width, device=device).to(dtype).requires_grad_()
    labels_BT = torch.randint(options.vocabulary, (1, options.tokens), device=device)
    compute = in_pieces if options.side == "pieces" else plainly
    warm = Head(options.width, 4096, cap=None, z_loss=0.0).to(device, dtype)
    compute(warm, x_BTD[:, :64].detach().requires_grad_(), labels_BT[:, :64] % 4096)
    before = now_held(device)
    began = seconds_of(device)
    loss = compute(head, x_BTD, labels_BT)
    taken = seconds_of(device) - began
    gradients = (x_BTD.grad, head.weight.grad)
    return Measured(
        taken, most_held(device) - before, sum(cast(Tensor, each).nbytes for each in gradients), loss
    )


def in_pieces(head: Head, x_BTD: Tensor, labels_BT: Tensor) -> float:
    """The trainer's loss and its gradients."""
    weight = torch.tensor(1 / labels_BT.numel(), dtype=torch.float64, device=labels_BT.device)
    losses: Losses = head(x_BTD, Targets(labels_BT=labels_BT, weights_B1=weight))
    torch.autograd.backward(losses.objective)
    return float(losses.of_tokens_BT.mean())


def plainly(head: Head, x_BTD: Tensor, labels_BT: Tensor) -> float:
    """The same of whole logits, in the way of torch's examples."""
    wide = head(x_BTD).float()
    loss = F.cross_entropy(wide.flatten(0, 1), labels_BT.flatten())
    del wide
    torch.autograd.backward(loss)
    return float(loss.detach())


def seconds_of(device: torch.device) -> float:
    """A clock: of this process, or of the wall once a GPU is idle."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def now_held(device: torch.device) -> int:
    """Bytes that are in use."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * resource.getpagesize()


def most_held(device: torch.device) -> int:
    """Bytes that were in use at most."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
