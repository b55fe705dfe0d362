"""A record as Croissant 1.1: JSON-LD of the clean texts in `documents/`, which `mlcroissant` validates and loads.

mlcroissant reads many files as one record set where they lie below the folder of the JSON-LD. Elsewhere each file is a
record set of its own.

https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html; RAI vocabulary 1.0 for collection and processing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lineage.index.output_index import read_index
from lineage.storage.folder import Folder, split
from lineage.storage.places import name_in
from pipeline.record.forms.form import FormFacts, period
from pipeline.record.forms.processing import cleaning, languages

_CONTEXT: Final[Mapping[str, Any]] = {
    "@language": "en", "@vocab": "https://schema.org/", "citeAs": "cr:citeAs", "column": "cr:column",
    "conformsTo": "dct:conformsTo", "containedIn": "cr:containedIn", "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/", "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"}, "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"}, "extract": "cr:extract", "field": "cr:field",
    "fileProperty": "cr:fileProperty", "fileObject": "cr:fileObject", "fileSet": "cr:fileSet", "format": "cr:format",
    "includes": "cr:includes", "isLiveDataset": "cr:isLiveDataset", "jsonPath": "cr:jsonPath", "key": "cr:key",
    "md5": "cr:md5", "parentField": "cr:parentField", "path": "cr:path", "prov": "http://www.w3.org/ns/prov#",
    "recordSet": "cr:recordSet", "references": "cr:references", "regex": "cr:regex", "repeated": "cr:repeated",
    "replace": "cr:replace", "samplingRate": "cr:samplingRate", "sc": "https://schema.org/",
    "separator": "cr:separator", "source": "cr:source", "subField": "cr:subField", "transform": "cr:transform",
}  # fmt: skip
_FIELDS: Final = {"text": "sc:Text", "url": "sc:URL", "language": "sc:Text", "captured_at": "sc:Text"}
NAMES: Final = ("name", "description", "url", "license", "creator", "datePublished")
_PARTS: Final = "parts"


def croissant(outs: Sequence[Folder], facts: FormFacts, to: str | None) -> dict[str, object]:
    """The JSON-LD of these outputs, for the file `to`; what the provider has not stated is left out, and named in the
    record as open."""
    stated = facts.stated.answers
    above = None if to is None else split(to)[0]
    below = [None if above is None else name_in(above, out.url) for out in outs]
    files = [
        _file(out, part.file, number, where)
        for number, (out, where, part) in enumerate(
            (out, where, part)
            for out, where in zip(outs, below, strict=True)
            for part in read_index(out).documents
        )
    ]
    is_one_set = None not in below
    found: dict[str, object] = {
        "@context": dict(_CONTEXT),
        "@type": "sc:Dataset",
        "conformsTo": ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"],
        **{name: stated[name] for name in (*NAMES, "version", "citeAs") if name in stated},
        "inLanguage": [
            row["language"] for row in facts.figures.tables["languages"] if row["language"] != "und"
        ],
        "distribution": [
            *files,
            *([_file_set(files)] if is_one_set else []),
        ],
        "recordSet": [_record_set("documents", {"fileSet": {"@id": _PARTS}})]
        if is_one_set
        else [
            _record_set(f"documents-{file['@id']}", {"fileObject": {"@id": file["@id"]}}) for file in files
        ],
        "rai:dataCollectionTimeframe": period(facts.figures.tables["period"][0]),
        "rai:dataPreprocessingProtocol": cleaning(facts),
        "rai:dataCollection": languages(facts),
        "rai:dataBiases": stated.get("biases"),
        "rai:dataLimitations": stated.get("limitations"),
    }
    if "creator" in stated:
        found["creator"] = {"@type": "sc:Organization", "name": stated["creator"]}
    return {name: value for name, value in found.items() if value is not None}


def _file(out: Folder, name: str, number: int, where: str | None) -> dict[str, object]:
    digest = hashlib.sha256()
    with out.open(name) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return {
        "@type": "cr:FileObject",
        "@id": f"part-{number:05d}.parquet",
        "name": name,
        "contentUrl": out.at(name) if where is None else f"{where}/{name}",
        "contentSize": f"{out.size(name)} B",
        "encodingFormat": "application/x-parquet",
        "sha256": digest.hexdigest(),
    }


def _file_set(files: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    return {
        "@type": "cr:FileSet",
        "@id": _PARTS,
        "encodingFormat": "application/x-parquet",
        "includes": [file["contentUrl"] for file in files],
    }


def _record_set(name: str, source: Mapping[str, Any]) -> dict[str, object]:
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{name}/{column}",
            "dataType": kind,
            "source": {**source, "extract": {"column": column}},
        }
        for column, kind in _FIELDS.items()
    ]
    return {"@type": "cr:RecordSet", "@id": name, "field": fields}
