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
    ): "What the run is called and where its output goes. An output holds one run: the same recipe"
    " continues it, another recipe is refused.",
    (
        "data",
        "source",
    ): "Input files that share their steps. Each source is a folder of its own below `documents/` and"
    " `shards/`, and a name in mixtures. A recipe has one or more of these tables.",
    ("data", "url"): "What is rejected by its address, before anything is parsed.",
    (
        "data",
        "parse",
    ): "How the main text of a page is found in its HTML. The bounds come before any clock, so that a"
    " page has the same outcome on any machine.",
    (
        "data",
        "language",
    ): "Which languages stay, by a fastText model. The prefilter asks the same model about the text of"
    " a fast extractor first, so that most pages of other languages are never parsed slowly. Each text that"
    " stays is judged by the quality rules of its own language; `nb` and `no` name one.",
    (
        "data",
        "quality",
    ): "Rule sets over a document's text, and their thresholds. A threshold that is not given has the"
    " default of the variant; docs/rules.md names what each rule measures and how the variants differ. A"
    " text is judged by the table of its own language (how words are split, stop words); `no_table` says"
    " what becomes of one without.",
    (
        "data",
        "quality.language.NAME",
    ): "What holds for the texts in one language, named by any of its labels (de,"
    " deu_Latn), instead of what [quality] says. What it leaves out is as there.",
    (
        "data",
        "classifier",
    ): "A model whose score for a label decides. A recipe may have several; each is a rule"
    " `classifier.<name>`. A file is a supervised fastText model; a folder is a transformers encoder (extra"
    " `models`), which works on actors of its own while others read (docs/models.md).",
    (
        "data",
        "step",
    ): "How a step of your own that `source.steps` names is carried out: a function that takes a list"
    " of documents, or a class, which works on actors of its own (docs/models.md).",
    ("data", "decontaminate"): "Documents that hold too much of a benchmark's items are rejected."
    " `sluice scan` finds such documents in a finished output.",
    (
        "data",
        "pii",
    ): "Personal data and secrets in texts: replaced by placeholders, or the document is rejected.",
    (
        "data",
        "dedup",
    ): "What counts as a repetition over the whole corpus, how it is looked for, and which copy stays."
    " With b bands of r rows two texts of Jaccard s become candidates with probability 1 - (1 - s^r)^b; what"
    " is a candidate is then verified, on texts that `normalise` has made alike (docs/near-duplicates.md).",
    (
        "data",
        "bucket",
    ): "Parts of a source by what classifiers gave: each has shards of its own, under a name of its own,"
    " which a mixture weighs. Where several tables are given, a part's name has what each says, joined by"
    " dots.",
    (
        "data",
        "repeat",
    ): "How often an epoch of training reads a document: by the size of its cluster over the whole corpus, as"
    " FineWeb-2 rehydrates, or by the bucket of its score, as Dolma 3 upsamples. Each lies on disk once:"
    " documents that are read equally often share shards, and index.json says how often an epoch reads"
    " each.",
    (
        "data",
        "repeat.language.NAME",
    ): "How often an epoch reads the documents in one language, named by any of its labels (de, deu_Latn): their"
    " rows stand in a table of their own, as FineWeb-2 has one for each of many languages. Documents in other"
    " languages, and those whose language nobody named, follow `repeat.table`. A source may hold several"
    " languages: what is exact is the sum over a row's documents in each of them.",
    ("data", "tokenize"): "How texts become tokens, and tokens become shards.",
    ("data", "limits"): "What stops a run, and what is too long to look at.",
    ("data", "purges"): "Earlier outputs whose purged documents stay out of this one.",
    (
        "data",
        "ray",
    ): "Where the run is carried out, and what a unit of work reserves. Nothing here changes a byte of the"
    " result, and it may differ from call to call.",
    (
        "data",
        "ray.stages.NAME",
    ): "What the units of one kind of work reserve, where it is not what `[ray]` says. The"
    " names are read, compare, tokenize, cut, write and join.",
    ("train", "run"): "What lineage calls the training run.",
    (
        "train",
        "train",
    ): "The data, the model and the size of a step. What a run reads in which order is a function of the"
    " data, `seed`, `seq_len`, `global_batch`, `validation` and the mixture, and of nothing else.",
    (
        "train",
        "train.data",
    ): "The outputs that a run reads, where it reads several: `train.data` as a list of tables.",
    (
        "train",
        "train.parallel",
    ): "The device mesh: the product of the sizes is the number of processes. The order of the"
    " data does not depend on it.",
    (
        "train",
        "train.pipeline",
    ): "How the stages of `train.parallel.pp` take turns, and how many layers each has.",
    ("train", "train.context"): "How the processes of `train.parallel.cp` share the positions of a sequence.",
    (
        "train",
        "train.experts",
    ): "How a mixture of experts is trained: room, losses, bias. Other models ignore it.",
    (
        "train",
        "train.float8",
    ): 'How products are computed with `dtype = "float8"`, which needs the extra `float8`.',
    (
        "train",
        "train.overlap",
    ): "What GPUs exchange while they compute. On a CPU each key but its default is refused.",
    (
        "train",
        "train.optimizer",
    ): "What updates the weights, AdamW alone or with Muon, and the schedule of its learning rate.",
    (
        "train",
        "train.optimizer.muon",
    ): "Muon, for matrices inside layers. The defaults are those of its author's publication; the source of a"
    " key names another one where there is one.",
    (
        "train",
        "train.optimizer.group",
    ): "Parameters with another rate or decay. Of the groups that match a parameter the first counts; one that"
    " no parameter is in is refused.",
    ("train", "train.checkpoint"): "How often the whole state is saved, and how much of it is kept.",
    ("train", "train.cache"): "Blocks of remote shards on local disk, shared by the ranks of a node.",
    (
        "train",
        "train.order",
    ): "How widely sequences are shuffled, and over how many of them the mixture's shares hold exactly.",
    (
        "train",
        "train.faults",
    ): "Which losses are faults, how many batches may be skipped, and when a hung rank is given up.",
    (
        "train",
        "train.recorder",
    ): "What each process keeps of what it did last, in its node's memory: its collectives and"
    " messages, and own and waiting time of its steps. `sluice train diagnose RUN_OUTPUT` reads them of all processes"
    " together.",
    (
        "train",
        "train.stragglers",
    ): "When a rank is named as slower than others at the same work: by the median of its own"
    " time in a phase over a window of steps, two windows in a row.",
    (
        "train",
        "train.recovery",
    ): "What follows when a process dies or hangs: all start again from the newest"
    " checkpoint, or the others go on with what they hold and a waiting process takes its place"
    " (docs/training.md).",
    (
        "train",
        "train.health",
    ): "How often the run looks whether its machines are sound: known products and sums whose"
    " time and bits are compared, room, and what kernel and GPUs count.",
    (
        "train",
        "train.resources",
    ): "What each training process reserves on a Ray cluster, and where it may lie. Nothing"
    " of it matters under torchrun.",
    (
        "train",
        "train.mixture",
    ): "The share of each source, from a step on. Without such a table sources are read in"
    " proportion to their tokens.",
    ("train", "plan"): "The machines that `sluice plan` assumes.",
    ("train", "ray"): "Where the training processes run.",
    (
        "train",
        "mix",
    ): "The ablation that decides the mixture: many small runs, a model fitted on their losses, and the"
    " mixture that it likes best. A training run ignores this table; `sluice mix` reads it.",
    ("train", "mix.proxy"): "What the small runs of an ablation change of `[train]`.",
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
    (
        "train",
        "train.optimizer",
    ): '[train.optimizer]\nlr = 1e-3\nschedule = "wsd"\ndecay = "sqrt"\nwarmup_steps = 500',
    (
        "train",
        "train.optimizer.muon",
    ): '[train.optimizer]\nname = "muon"\n\n[train.optimizer.muon]\nlr = 0.01\nweight_decay = 0.1',
    (
        "train",
        "train.optimizer.group",
    ): '[[train.optimizer.group]]\nmatch = "embedding"\nweight_decay = 0.0',
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
