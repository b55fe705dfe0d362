"""Where the weights come from that a run begins with: which run made the folder that `train.init_from`
names."""

from __future__ import annotations

import json

from lineage.ids import content_hash
from lineage.storage.folder import Folder, split
from trainer.checkpoint.store import COMPLETE, OWNER, is_checkpoint, read_position
from trainer.huggingface.exported import MADE_FROM
from trainer.provenance.facts import owner_of
from trainer.provenance.setup import Origin


def origin_of(url: str) -> Origin:
    """The origin of a checkpoint, or of a folder of safetensors; RecipeError where it is neither."""
    folder = Folder(url)
    if is_checkpoint(folder):
        position = read_position(folder)
        above, _ = split(folder.url)
        output = json.loads(above.read(OWNER))["output"] if above.exists(OWNER) else split(above.url)[0].url
        return Origin(
            url=folder.url,
            digest=content_hash(folder.read(COMPLETE)).hex(),
            output=output,
            run=owner_of(Folder(output)),
            step=position.step,
            attempt=position.attempt,
        )
    made = json.loads(folder.read(MADE_FROM)) if folder.exists(MADE_FROM) else {}
    names = ("output", "run", "step", "attempt")
    return Origin(
        url=folder.url,
        digest=content_hash(folder.read("config.json")).hex(),
        **{name: made.get(name) for name in names},
    )
