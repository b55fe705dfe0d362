"""A paragraph and an example for each table of a recipe: what docs/recipe.md and `sluice recipe` show beside
keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pipeline.recipe_help.keys import Kind

PARAGRAPHS: Final[Mapping[tuple[Kind, str], str]] = {
    (
        "data",
        "run",
    ): "Name and output of the run. An output holds one run: the same recipe continues it, another "
    "recipe is refused.",
    (
        "data",
        "source",
    ): "Input files with the same steps. Each source has its own folder below `documents/` and "
    "`shards/`, and is named in mixtures. A recipe has one or more of these tables.",
    ("data", "url"): "Documents rejected by their URL, before anything is parsed.",
    (
        "data",
        "parse",
    ): "Extraction of the main text from HTML. Bounds on the markup apply before any time limit, so a "
    "page has the same outcome on every machine.",
    (
        "data",
        "language",
    ): "Languages to keep, by a fastText model. The prefilter first asks the model about the text of a "
    "fast extractor, so most pages in other languages never reach the slow one. Each kept text is "
    "judged by the quality rules of its language; `nb` and `no` are one language.",
    (
        "data",
        "quality",
    ): "Rule sets on a document's text, with their thresholds. A threshold that is not given has the "
    "default of the variant; docs/rules.md describes the measure of each rule and the differences "
    "between variants. A text is judged by the table of its language (word splitting, stop words); "
    "`no_table` decides on texts without one.",
    (
        "data",
        "quality.language.NAME",
    ): "Settings for texts in one language, named by any of its labels (de, deu_Latn). Keys that are not"
    " given are taken from [quality].",
    (
        "data",
        "classifier",
    ): "A model whose score for a label decides. A recipe may have several; each is a rule "
    "`classifier.<name>`. A file is a supervised fastText model. A folder is a transformers encoder "
    "(extra `models`), which runs on its own actors while other units are read (docs/models.md).",
    (
        "data",
        "step",
    ): "How your own step in `source.steps` runs: a function that takes a list of documents, or a class,"
    " which runs on its own actors (docs/models.md).",
    (
        "data",
        "decontaminate",
    ): "Rejects documents that contain too much of a benchmark's items. `sluice scan` finds such "
    "documents in a finished output.",
    (
        "data",
        "pii",
    ): "Personal data and secrets in texts: replaced by placeholders, or the document is rejected.",
    (
        "data",
        "dedup",
    ): "Duplicates over the whole corpus: what counts as one, how candidates are found, and which copy "
    "stays. With b bands of r rows, two texts of Jaccard s become candidates with probability 1 - (1 "
    "- s^r)^b. Candidates are then verified on texts normalised by `normalise` "
    "(docs/near-duplicates.md).",
    (
        "data",
        "bucket",
    ): "Splits a source by classifier scores or labels: each part has its own shards and its own name, "
    "which a mixture can weigh. With several tables, the name of a part joins theirs by dots.",
    (
        "data",
        "repeat",
    ): "How often an epoch of training reads a document: by the size of its cluster over the whole "
    "corpus, as in FineWeb-2's rehydration, or by the bucket of its score, as in Dolma 3's "
    "upsampling. Each document is stored once: documents with equal repeats share shards, and "
    "index.json has the repeats of each shard.",
    (
        "data",
        "repeat.language.NAME",
    ): "How often an epoch reads documents in one language, named by any of its labels (de, deu_Latn): a"
    " separate table of rows, as FineWeb-2 has for many languages. Documents in other languages, or "
    "without a language, follow `repeat.table`. A source may have several languages: fractional times "
    "hold exactly over the row's documents of each.",
    ("data", "tokenize"): "How texts become tokens, and tokens become shards.",
    ("data", "limits"): "Limits that stop a run, and limits on the size of a record.",
    ("data", "purges"): "Earlier outputs whose purged documents stay out of this one.",
    (
        "data",
        "ray",
    ): "Where the run executes, and what a unit of work reserves. Nothing here changes a byte of the "
    "result, and it may differ from call to call.",
    (
        "data",
        "ray.stages.NAME",
    ): "What units of one kind reserve, if different from `[ray]`. The names are read, compare, "
    "tokenize, cut, write and join.",
    ("train", "run"): "Name of the training run in lineage.",
    (
        "train",
        "train",
    ): "The data, the model and the size of a step. The order of the data depends only on the data, "
    "`seed`, `seq_len`, `global_batch`, `validation` and the mixture.",
    (
        "train",
        "train.data",
    ): "Several outputs to read: `train.data` as a list of tables.",
    (
        "train",
        "train.parallel",
    ): "The device mesh: the product of the sizes is the number of processes. The order of the"
    " data does not depend on it.",
    (
        "train",
        "train.pipeline",
    ): "The schedule of the stages of `train.parallel.pp`, and the layers of each stage.",
    ("train", "train.context"): "How the processes of `train.parallel.cp` share the positions of a sequence.",
    (
        "train",
        "train.experts",
    ): "How a mixture of experts is trained: capacity, losses, bias. Other models ignore it.",
    (
        "train",
        "train.float8",
    ): 'How products are computed with `dtype = "float8"`, which needs the extra `float8`.',
    (
        "train",
        "train.overlap",
    ): "Communication of GPUs during computation. On a CPU only the defaults are allowed.",
    ("train", "train.optimizer"): "AdamW and its learning rate schedule.",
    ("train", "train.checkpoint"): "How often the whole state is saved, and how much of it is kept.",
    ("train", "train.cache"): "Blocks of remote shards on local disk, shared by the ranks of a node.",
    (
        "train",
        "train.order",
    ): "How widely sequences are shuffled, and over how many sequences the mixture's shares hold exactly.",
    (
        "train",
        "train.faults",
    ): "Which losses are faults, how many batches may be skipped, and when a hung rank is ended.",
    (
        "train",
        "train.recorder",
    ): "Records in node memory of each process's last collectives and messages, and of the own and "
    "waiting time of its steps. `sluice train diagnose RUN_OUTPUT` reads the records of all processes"
    " together.",
    (
        "train",
        "train.stragglers",
    ): "When a rank counts as slower than others at the same work: by the median of its own time in a "
    "phase over a window of steps, two windows in a row.",
    (
        "train",
        "train.recovery",
    ): "What happens when a process dies or hangs: all restart from the newest checkpoint, or the "
    "survivors keep their state and a spare takes its place (docs/training.md).",
    (
        "train",
        "train.health",
    ): "How often the run checks its machines: products and all-reduces with known time and bits, free "
    "space, and error counters of kernel and GPUs.",
    (
        "train",
        "train.resources",
    ): "What each training process reserves on a Ray cluster, and its placement. Has no effect under "
    "torchrun.",
    (
        "train",
        "train.mixture",
    ): "The share of each source, from a given step on. Without this table sources are read in "
    "proportion to their tokens.",
    ("train", "plan"): "The machines that `sluice plan` assumes.",
    ("train", "ray"): "Where the training processes run.",
    (
        "train",
        "mix",
    ): "The ablation that chooses a mixture: many small runs, a model fitted to their losses, and the "
    "mixture with the lowest predicted loss. `sluice mix` reads this table; a training run ignores "
    "it.",
    ("train", "mix.proxy"): "Keys of `[train]` that the small runs of an ablation change.",
    ("train", "mix.doremi"): "The constants of DoReMi (2305.10429, section 3.1).",
}
"""Of each table, by recipe and dotted name."""

EXAMPLES: Final[Mapping[tuple[Kind, str], str]] = {
    ("data", "run"): '[run]\nname = "english-2026"\noutput = "s3://bucket/out"',
    ("data", "source"): '[[source]]\nname = "posts"\ninputs = ["posts/*.jsonl.gz"]\ntext_field = "body"\n'
    'steps = ["parse", "language", "quality", "pii", "identity", "dedup.exact", "dedup.near"]',
    ("data", "url"): '[url]\nblock_hosts = ["hosts.txt"]',
    ("data", "parse"): '[parse]\nextractor = "resiliparse"',
    ("data", "language"): '[language]\nkeep = ["de", "fr"]\nmin_score = 0.7\nprefilter = true',
    ("data", "quality"): '[quality]\nrules = ["gopher_repetition", "gopher_quality", "c4", "fineweb"]\n'
    "c4_terminal_punctuation = false\nmax_top_2_gram = 0.25",
    ("data", "quality.language.NAME"): "[quality.language.de]\nmin_words = 40\nmax_word_length = 15\n\n"
    '[quality.language.en]\nvariant = "datatrove"',
    (
        "data",
        "classifier",
    ): '[[classifier]]\nname = "edu"\nmodel = "edu.bin"\nlabel = "high"\nthreshold = 0.4\n'
    'reject = "below"\n\n[[classifier]]\nname = "toxic"\nmodel = "toxic-encoder"\nlabel = "toxic"\n'
    "threshold = 0.8\nnum_gpus = 1\nactors = [1, 4]",
    (
        "data",
        "step",
    ): '[[step]]\nname = "my_steps:Perplexity"\nfiles = { weights = "ngrams.bin" }\nbatch_size = 64\n'
    "actors = [1, 2]",
    ("data", "decontaminate"): '[decontaminate]\nagainst = ["gsm8k.jsonl"]\nfield = "question"',
    ("data", "pii"): '[pii]\nkinds = ["email", "ip"]',
    (
        "data",
        "dedup",
    ): '[dedup]\nnum_perm = 112\nbands = 14\nrows = 8\nnormalise = "fineweb"\nthreshold = 0.75',
    ("data", "bucket"): '[[bucket]]\nname = "quality"\nby = ["score_edu", "score_hq"]\n'
    'percentiles = [50, 80, 95]\nweigh = "tokens"\n\n[[bucket]]\nname = "topic"\nby = "label_topic"',
    (
        "data",
        "repeat",
    ): '[repeat]\nby = "cluster_size"\ntable = { 1 = 1, 2 = 2, 3 = 3, 5 = 5, 100 = 8, 1000 = 1 }',
    (
        "data",
        "repeat.language.NAME",
    ): "[repeat.language.de]\ntable = { 1 = 1, 2 = 3, 3 = 4, 10 = 8 }",
    ("data", "tokenize"): '[tokenize]\nencoding = "tokenizer.json"\nshard_tokens = 100_000_000',
    ("data", "limits"): "[limits]\nmax_bad_records = 0.05",
    ("data", "purges"): '[purges]\nhonour = ["s3://bucket/earlier"]',
    ("data", "ray"): '[ray]\naddress = "auto"\nunit_memory = 2_000_000_000',
    ("data", "ray.stages.NAME"): "[ray.stages.compare]\nmemory = 8_000_000_000",
    ("train", "run"): '[run]\nname = "first-run"\nseed = 7',
    (
        "train",
        "train",
    ): '[train]\ndata = "out/crawl"\noutput = "out/first-run"\nmodel = "125M"\nseq_len = 2048\n'
    "global_batch = 256\nsteps = 20_000\nworkers = 8",
    (
        "train",
        "train.data",
    ): '[[train.data]]\nout = "out/crawl"\n\n[[train.data]]\nout = "out/books"\nprefix = "books-"',
    ("train", "train.parallel"): "[train.parallel]\ndp_shard = 4\ntp = 2",
    ("train", "train.pipeline"): '[train.pipeline]\nschedule = "interleaved"\nvirtual_stages = 4',
    ("train", "train.context"): '[train.context]\nmethod = "gather"\nbalance = "documents"',
    (
        "train",
        "train.experts",
    ): "[train.experts]\ncapacity_factor = 0.0\nbias_rate = 0.001\nbalance_loss = 0.0",
    ("train", "train.float8"): '[train.float8]\nrecipe = "rowwise"\nemulate = true',
    ("train", "train.overlap"): "[train.overlap]\nprefetch_layers = 2\nasync_tp = true",
    ("train", "train.optimizer"): '[train.optimizer]\nlr = 1e-3\nschedule = "wsd"\nwarmup_steps = 500',
    ("train", "train.checkpoint"): "[train.checkpoint]\nevery = 500\nkeep = 2\nkeep_every = 5000",
    ("train", "train.cache"): '[train.cache]\ndir = "/nvme/sluice"\nmax_bytes = 500_000_000_000',
    ("train", "train.order"): "[train.order]\nwindow_blocks = 256",
    ("train", "train.faults"): "[train.faults]\nspike_sigma = 8\nwatchdog_seconds = 300",
    ("train", "train.recorder"): "[train.recorder]\noperations = 8192",
    ("train", "train.stragglers"): "[train.stragglers]\nwindow = 50\nfactor = 1.1",
    (
        "train",
        "train.recovery",
    ): '[train.recovery]\nmode = "in_place"\nspares = 1\n\n[train.parallel]\ndp_replicate = 2',
    ("train", "train.health"): "[train.health]\nevery = 500",
    ("train", "train.resources"): '[train.resources]\ncpus = 4\nplacement = "SPREAD"',
    (
        "train",
        "train.mixture",
    ): "[[train.mixture]]\nweights = { web = 0.8, books = 0.2 }\n\n[[train.mixture]]\n"
    "first_step = 15_000\nweights = { web = 0.5, books = 0.5 }",
    ("train", "plan"): '[plan]\ngpu = "H200"\ninter_gbps = 800',
    ("train", "ray"): '[ray]\naddress = "auto"',
    ("train", "mix"): "[mix]\nruns = 32\ncaps = { web = 0.9 }\ntargets = { books = 1 }",
    ("train", "mix.proxy"): '[mix.proxy]\nmodel = "debug"\ntokens = 5_000_000',
    ("train", "mix.doremi"): "[mix.doremi]\nstep_size = 1.0",
}
"""A table of each kind as a recipe may hold it."""


def paragraph_of(kind: Kind, table: str) -> str:
    """What a table is, for its page and for editors; AssertionError where nothing of it is written here."""
    assert (kind, table) in PARAGRAPHS, (
        f"PARAGRAPHS of pipeline/recipe_help/tables.py: a paragraph of [{table}] lacks"
    )
    return PARAGRAPHS[kind, table]


def example_of(kind: Kind, table: str) -> str:
    """A table as a recipe has it. AssertionError as of `paragraph_of`."""
    assert (kind, table) in EXAMPLES, (
        f"EXAMPLES of pipeline/recipe_help/tables.py: an example of [{table}] lacks"
    )
    return EXAMPLES[kind, table]
