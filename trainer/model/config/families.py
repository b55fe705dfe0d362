"""What a config.json says, read into a description and written back, as `family_table` beside it has it. No torch
here."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar, cast

from lineage.recipe import RecipeError, errors_about
from trainer.model.config.description import (
    Experts,
    Gate,
    LatentAttention,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    Rotary,
    RouterConfig,
    YarnScaling,
)
from trainer.model.config.family_table import FAMILIES, HARMLESS, KEYS, LAYERS, NUMBER, SIZE, TRUTH, Family

_T = TypeVar("_T")

TRAINED_KINDS: Final = tuple(name for name, family in FAMILIES.items() if not family.planned_only)
"""What a config.json may name as its model_type."""
PLANNED_KINDS: Final = tuple(FAMILIES)
"""What can be planned."""
_NULLS: Final = frozenset({
    "num_key_value_heads", "sliding_window", "q_lora_rank", "attn_logit_softcapping", "final_logit_softcapping",
})  # fmt: skip
"""Keys for which null is another value than what their class has by default."""
_NESTED: Final = {"gate": Gate, "experts": Experts, "router": RouterConfig, "latent": LatentAttention}
_SCALINGS: Final = {"linear": LinearScaling, "llama3": Llama3Scaling, "yarn": YarnScaling}
_FULL, _SLIDING = "full_attention", "sliding_attention"


def from_hugging_face(
    raw: Mapping[str, Any], *, where: str, kinds: tuple[str, ...] = TRAINED_KINDS
) -> ModelConfig:
    """The model that a config.json describes; RecipeError names key and value of what we cannot build.
    A null is a key that is left out, but where it is a value of its own."""
    with errors_about(where):
        if not isinstance(raw, Mapping):
            raise RecipeError("expected a table of keys, as a config.json of a model has")
        kind = raw.get("model_type", "llama")
        if kind not in kinds:
            raise _wrong("model_type", kind, f"{', '.join(map(repr, kinds[:-1]))} or {kinds[-1]!r}")
        return _read({**raw, "model_type": kind}, FAMILIES[kind], reads_weights=kinds is TRAINED_KINDS)


def _read(raw: Mapping[str, Any], family: Family, *, reads_weights: bool) -> ModelConfig:
    _check_keys(raw, family, reads_weights=reads_weights)
    given = {name: value for name, value in raw.items() if value is not None or name in _NULLS}
    for alias, name in family.aliases.items():
        value = given.pop(alias, None)
        if value is not None and given.setdefault(name, value) != value:
            raise RecipeError(f"{alias} = {value!r}, and {name} = {given[name]!r}: expected one value")
    known = {**family.defaults, **given}
    values: dict[str, Any] = {"family": raw["model_type"], **family.fixed}
    for name in family.keys:
        if name not in known:
            raise RecipeError(f"{name} is missing: expected a {raw['model_type']} config.json")
        if key := KEYS.get(name):
            kind = SIZE if name in family.not_zero else key.kind
            # To transformers a null here is false, or an error, and not the class's default.
            value = raw.get(name, known[name]) if kind == TRUTH else given.get(name)
            if (value is not None or kind == TRUTH) and not _is(kind, value):
                raise _wrong(name, value, kind)
            values |= dict.fromkeys(key.fields, known[name])
    width, heads = known["hidden_size"], known["num_attention_heads"]
    values["num_kv_heads"] = values["num_kv_heads"] or heads
    values["head_dim"] = values.get("head_dim") or width // heads
    if "latent.kv_rank" in values:
        values["head_dim"] = values["latent.nope_dim"] + values["latent.rope_dim"]
    if family.scales_embedding:
        values["embedding_scale"] = width**0.5
    if "experts.num_experts" in values:
        values.setdefault("experts.hidden", known["intermediate_size"])
        values["experts.dense_layers"] = _dense_layers(known)
    slides = _sliding_layers(known, family)
    values["windows"] = _pattern(known["sliding_window"] if slide else None for slide in slides)
    values["rotary"] = _rotary(known, given, family, slides)
    return cast(ModelConfig, _build(ModelConfig, values))


def _build(kind: Any, values: Mapping[str, Any]) -> Any:
    """A description from its fields by their paths."""
    direct: dict[str, object] = {}
    inner: dict[str, dict[str, object]] = {}
    for path, value in values.items():
        name, _, rest = path.partition(".")
        (inner.setdefault(name, {}) if rest else direct)[rest or name] = value
    return kind(**direct, **{name: _build(_NESTED[name], fields) for name, fields in inner.items()})


def _wrong(name: str, value: object, expected: str) -> RecipeError:
    return RecipeError(f"{name} = {value!r}: expected {expected}")


def _check_keys(raw: Mapping[str, Any], family: Family, *, reads_weights: bool) -> None:
    """RecipeError with key and value where a config.json asks for what is not computed here. A key that is
    null counts as not given."""
    if reads_weights and raw.get("quantization_config") is not None:
        raise RecipeError(
            f"quantization_config = {raw['quantization_config']!r}: the folder's weights are quantized:"
            " expected float16, bfloat16, float32 or float64 (transformers' model.dequantize() makes them)"
        )
    only = family.only_values
    for name, value in only.items():
        if raw.get(name) not in (None, value) and name not in family.harmless:
            raise _wrong(name, raw[name], f"{value!r} (model_type {raw['model_type']!r})")
    if family.planned_only:
        return
    # Early folders write LLaMAForCausalLM.
    names = raw.get("architectures") or [family.architecture]
    if str(names).lower() != f"['{family.architecture}']".lower():
        raise _wrong("architectures", names, f"[{family.architecture!r}]")
    known = {*family.keys, *family.aliases, *family.harmless, *only, *HARMLESS, "layer_types"}
    for name, value in raw.items():
        if name not in known and value is not None and (reads_weights or name != "quantization_config"):
            raise RecipeError(
                f"{name} = {value!r}: the trainer computes no such thing, so it would train another model;"
                " take the key out if the weights do not need it"
            )


def _is(kind: str, value: Any) -> bool:
    if kind == TRUTH:
        return type(value) is bool
    if kind == NUMBER:
        return type(value) in (int, float) and 0 < value < float("inf")
    return type(value) is int and value >= (kind == SIZE)


def _dense_layers(known: Mapping[str, Any]) -> tuple[int, ...]:
    """The layers without experts: the first few, or all but each so many-th and those that are named."""
    first, step = known.get("first_k_dense_replace", 0), known.get("decoder_sparse_step", 1)
    named = known.get("mlp_only_layers") or []
    if not isinstance(named, list):
        raise _wrong("mlp_only_layers", named, "a list of layers")
    layers = range(known["num_hidden_layers"])
    return tuple(layer for layer in layers if layer < first or (layer + 1) % step or layer in named)


def _sliding_layers(known: Mapping[str, Any], family: Family) -> list[bool]:
    """Which layers have a window."""
    layers, types = range(known["num_hidden_layers"]), known.get("layer_types")
    chooses = "layer_types" in family.defaults
    # A class that does not read the key has its windows whatever it says.
    off = "use_sliding_window" in family.defaults and not known["use_sliding_window"]
    if types is not None:
        if family.slides is not None and not chooses:
            raise _wrong("layer_types", types, "no such key: transformers makes another model_type of it")
        expected = (_FULL, _SLIDING) if chooses and not off else (_FULL,)
        lists = isinstance(types, list) and len(types) == len(layers)
        if not lists or any(kind not in expected for kind in types):
            each = "for each layer" if len(expected) > 1 else "in every layer"
            each += " with use_sliding_window = False" if off else ""
            raise _wrong("layer_types", types, f"{' or '.join(map(repr, expected))} {each}")
    if family.slides is None or off:
        return [False for _ in layers]
    if types is not None:
        return [kind == _SLIDING for kind in types]
    return [LAYERS[family.slides](known, layer) for layer in layers]


def _pattern(values: Iterable[_T]) -> tuple[_T, ...]:
    """The shortest stretch that the layers repeat."""
    every = tuple(values)
    fits = (length for length in range(1, len(every)) if every[length:] == every[:-length])
    return every[: next(fits, None)]


def _rotary(
    known: Mapping[str, Any], given: Mapping[str, Any], family: Family, slides: list[bool]
) -> tuple[Rotary | None, ...]:
    """The rules of rotary positions, in either spelling (`rope_theta` and `rope_scaling`, or
    `rope_parameters`). RecipeError where the two disagree, or say what the trainer does not compute."""
    if family.planned_only:  # nothing of a plan hangs on how rotation is scaled
        return (Rotary(theta=float(known["rope_theta"])),)
    spelt = [_table(name, given.get(name) or {}) for name in ("rope_scaling", "rope_parameters")]
    if family.local_theta is not None:
        nested = dict(spelt[1])
        spelt[1], local = (
            _table(f"rope_parameters: {name}", nested.pop(name, None) or {}) for name in (_FULL, _SLIDING)
        )
        if nested:
            tables = f"a table for {_FULL!r} and one for {_SLIDING!r}"
            raise _wrong(f"rope_parameters: {next(iter(nested))}", next(iter(nested.values())), tables)
        if "type" in spelt[0] and "rope_type" not in spelt[0]:
            # Its table has a rope_type already, "default", to which transformers adds this one.
            raise _wrong("rope_scaling: type", spelt[0]["type"], "rope_type, as it counts for nothing here")
    elif not any(spelt) and "rope_parameters" not in given:
        spelt[1] = family.left_out.get("rope_parameters", {})
    full = other = _rule("rope_theta", spelt, known, given)
    if family.local_theta is None:
        if all(spelt) and full != _rule("rope_theta", spelt[:1], known, given):
            both = "the same rotary positions in rope_parameters, as transformers reads this one alone"
            raise _wrong("rope_scaling", dict(spelt[0]), both)
    else:
        base = {"rope_local_base_freq": family.local_theta, **known}
        other = _rule("rope_local_base_freq", [local], base, given)
        # transformers looks for it beside the tables of the two kinds of layers, where it is not.
        if any(isinstance(rule.scaling, YarnScaling) and not rule.scaling.truncate for rule in (full, other)):
            raise _wrong("truncate", False, "true, as this one counts for nothing here")
    rules = [other if slide else full for slide in slides]
    if family.rotates is not None:
        numbers = known.get("no_rope_layers")
        if numbers is not None and (not isinstance(numbers, list) or len(numbers) < len(slides)):
            raise _wrong("no_rope_layers", numbers, "a number for each layer")
        rotates = LAYERS[family.rotates]
        return _pattern(rule if rotates(known, layer) else None for layer, rule in enumerate(rules))
    return _pattern(rules)


def _table(name: str, table: Any) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        raise _wrong(name, table, "a table of rotary positions")
    return table


def _rule(
    base: str, tables: Iterable[Mapping[str, Any]], known: Mapping[str, Any], given: Mapping[str, Any]
) -> Rotary:
    """One rule from the tables that describe it. `base`: the key beside them for its theta."""
    found: dict[str, Any] = {}
    for table in ({"rope_theta": given.get(base)}, *tables):
        for spelling, value in table.items():
            key = "rope_type" if spelling == "type" else spelling
            if (value is not None or key == "truncate") and found.setdefault(key, value) != value:
                raise RecipeError(
                    f"{key} is {found[key]!r} and {value!r} for the same rotary positions: expected one value"
                )
    found.setdefault("rope_theta", known[base])
    kind = found.pop("rope_type", "default")
    if kind not in ("default", *_SCALINGS):
        raise RecipeError(f"rope scaling {kind!r}: expected 'default', {str(list(_SCALINGS))[1:-1]}")
    scaling = _SCALINGS.get(kind)
    fields = {one.name: one for one in dataclasses.fields(scaling)} if scaling else {}
    if found.get("partial_rotary_factor") == 1:
        del found["partial_rotary_factor"]
    longest, original = known["max_position_embeddings"], "original_max_position_embeddings"
    if original in fields and longest is not None:
        found.setdefault(original, longest)
        if scaling is YarnScaling and _is(NUMBER, found[original]):
            found.setdefault("factor", longest / found[original])
    for name, value in found.items():
        if name not in fields and name != "rope_theta":
            not_computed = f"of rotary positions with rope_type {kind!r}: the trainer computes no such thing"
            raise RecipeError(f"{name} = {value!r} {not_computed}")
        if not _is(allowed := TRUTH if name == "truncate" else NUMBER, value):
            raise _wrong(name, value, allowed)
    for name, one in fields.items():
        if name not in found and one.default is dataclasses.MISSING:
            raise RecipeError(f"{name} is missing: expected it with rope_type {kind!r}")
    theta, interleaved = float(found.pop("rope_theta")), bool(known.get("rope_interleave", False))
    return Rotary(theta=theta, scaling=scaling(**found) if scaling else None, interleaved=interleaved)


def to_hugging_face(config: ModelConfig, *, seq_len: int, end_of_text: int, dtype: str) -> dict[str, object]:
    """`config` as the config.json that transformers, vLLM and others read. RecipeError where it is no model of
    its family."""
    family, layers = FAMILIES[config.family], range(config.num_layers)
    described: dict[str, object] = {
        "architectures": [family.architecture],
        "model_type": config.family,
        "hidden_act": "silu",
        "max_position_embeddings": seq_len,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "pad_token_id": None,  # some classes have one by default, and leave its row of the embedding alone
        "torch_dtype": dtype,
        **family.only,
    }
    read = {name: key.fields[0] for name in family.keys if (key := KEYS.get(name)) and key.fields}
    described |= {name: operator.attrgetter(path)(config) for name, path in read.items()}
    windows, width = [config.window_of(layer) for layer in layers], config.window
    chooses = "layer_types" in family.defaults and "use_sliding_window" not in family.defaults
    dense = config.experts.dense_layers if config.experts else ()
    special = {
        "layer_types": [_FULL if window is None else _SLIDING for window in windows],
        # Classes that go by layer_types alone run with no null here, even if no layer slides.
        "sliding_window": family.defaults["sliding_window"] if chooses and width is None else width,
        "use_sliding_window": width is not None,
        "max_window_layers": next((layer for layer in layers if windows[layer]), config.num_layers),
        "no_rope_layers": [int(config.rotary_of(layer) is not None) for layer in layers],
        "first_k_dense_replace": len(dense),
        "mlp_only_layers": list(dense),
        "decoder_sparse_step": 1,
        "rope_interleave": config.interleaved,
    }
    described |= {name: value for name, value in special.items() if name in family.defaults}
    described |= _rope_keys(config, family)
    if from_hugging_face(described, where="config.json", kinds=PLANNED_KINDS) != config:
        raise RecipeError(
            f"model: {config} is no model that a config.json with model_type {config.family!r} describes"
        )
    return described


def _rope_keys(config: ModelConfig, family: Family) -> dict[str, object]:
    """Both spellings of the rotary rules."""
    every = ((config.window_of(layer), config.rotary_of(layer)) for layer in range(config.num_layers))
    rules = {window is not None: rule for window, rule in every if rule is not None}
    full = rules.get(False) or rules.get(True) or Rotary(theta=family.defaults["rope_theta"])
    scaling = {name: value for name, value in _rope_table(full).items() if name != "rope_theta"}
    keys: dict[str, object] = {"rope_theta": full.theta, "rope_scaling": scaling if full.scaling else None}
    if family.local_theta is None:
        return {**keys, "rope_parameters": _rope_table(full)}
    if "rope_local_base_freq" in family.defaults and True in rules:
        keys["rope_local_base_freq"] = rules[True].theta
    names = {False: _FULL, True: _SLIDING}
    return {**keys, "rope_parameters": {names[sliding]: _rope_table(rule) for sliding, rule in rules.items()}}


def _rope_table(rule: Rotary) -> dict[str, object]:
    kind = next((name for name, one in _SCALINGS.items() if one is type(rule.scaling)), "default")
    fields = dataclasses.asdict(rule.scaling) if rule.scaling else {}
    given = {name: value for name, value in fields.items() if value is not None}
    return {"rope_type": kind, "rope_theta": rule.theta, **given}
