"""What `sluice plan --roofline` found, as one JSON object and as a page."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pipeline.cli.printing import console, titled_table

if TYPE_CHECKING:
    from trainer.planning.roofline import Roofline

_LAW = "2404.10102's fit; of its data and tokenizer, so for this run a forecast and no measurement"


def as_json(found: Roofline) -> dict[str, object]:
    """The figures as one object: operations and bytes of forward, seconds, nats a token."""
    return {
        "gpu": found.gpu.name,
        "products": [
            {**dataclasses.asdict(product), "intensity": product.intensity, "bound": product.bound}
            for product in found.products
        ],
        "all_to_all": [dataclasses.asdict(exchange) for exchange in found.exchanges],
        "all_to_all_overtakes_at": found.overtaken.num_experts if found.overtaken else None,
        "forecast": {**dataclasses.asdict(found.forecast), "is_forecast": True, "law": _LAW},
        "reading": dataclasses.asdict(found.reading),
    }


def show(found: Roofline) -> None:
    """The page."""
    out = console()
    for table in (_products(found), _exchanges(found), _tokens(found), _reading(found)):
        out.print(table)


def _products(found: Roofline) -> Any:
    title = f"Products of one {found.gpu.name} in a micro-batch, forward"
    table = titled_table(title, "product", "shape", "operations a byte (ridge)", "bound by")
    for product in found.products:
        shape = f"{product.rows:,.0f} × {product.inner:,} × {product.columns:,.0f}"
        table.add_row(product.name, shape, f"{product.intensity:,.0f} ({product.ridge:,.0f})", product.bound)
    return table


def _exchanges(found: Roofline) -> Any:
    seen = found.layout.config.experts.top_k if found.layout.config.experts else 2
    title = f"Messages of a layer, forward, {seen} experts a token, one expert a GPU"
    table = titled_table(title, "experts", "all-to-all, ms", "tensor parallel's all-reduce, ms")
    for exchange in found.exchanges:
        over = " *" if exchange == found.overtaken else ""
        seconds = f"{exchange.all_to_all_seconds * 1e3:,.3f}{over}"
        table.add_row(f"{exchange.num_experts:,}", seconds, f"{exchange.tensor_seconds * 1e3:,.3f}")
    table.caption = "* from here on the all-to-all takes longer" if found.overtaken else "never longer"
    return table


def _tokens(found: Roofline) -> Any:
    law = found.forecast
    table = titled_table("Scaling law: a forecast", "", "tokens", "loss, nats a token")
    table.add_row("this recipe", f"{law.num_tokens:,}", f"{law.loss:.3f}")
    table.add_row("best for its operations", f"{law.optimal_tokens:,.0f}", f"{law.optimal_loss:.3f}")
    table.caption = _LAW
    return table


def _reading(found: Roofline) -> Any:
    read = found.reading
    table = titled_table("What the loader reads")
    table.add_row("slices of a batch, nodes that read", f"{read.readers:,}, {read.nodes:,}")
    table.add_row("tokens, MB/s in all", f"{read.bytes_per_second / 1e6:,.2f}")
    table.add_row("fetched where shards are remote, times that", f"{read.amplification:,.2f}")
    table.add_row("fetched by a node, MB/s", f"{read.fetched_bytes_per_second_per_node / 1e6:,.2f}")
    return table
