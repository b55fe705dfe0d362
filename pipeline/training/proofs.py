"""Whether a run has read a URL, a domain or a text, with the proof: what `sluice prove` does, and the library."""

from __future__ import annotations

from lineage.index.output_index import check_outside
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, split
from trainer.evidence.commitment.keys import Kind, domain_subject, text_subjects, url_subject
from trainer.evidence.commitment.prove import ReadingProof, proof_bytes, prove


def make_proof(
    output: Folder,
    *,
    url: str | None = None,
    domain: str | None = None,
    text: str | None = None,
    step: int | None = None,
    to: str | None = None,
) -> ReadingProof:
    """The proof that a committed checkpoint of a run, the newest or that of `step` steps, has read one of: a URL, a
    registered domain, the text of the file `text`; or that it has not. With `to` it is written to that file.
    RecipeError where the call is wrong or nothing is committed."""
    if to is not None:
        if not to.endswith(".json"):
            raise RecipeError(f"--to {to!r}: expected a name that ends in .json")
        check_outside("--to", to)
    kind: Kind = "url" if url is not None else "domain" if domain is not None else "text"
    if url is not None:
        if not url.strip():
            raise RecipeError(f"--url {url!r}: expected the URL of a page")
        subjects = [url_subject(url)]
    elif domain is not None:
        subjects = [domain_subject(domain)]
    else:
        subjects = text_subjects(_read_text(text))
    proof = prove(output, kind, subjects, step)
    if to is not None:
        folder, name = split(to)
        folder.publish(name, proof_bytes(proof))
    return proof


def _read_text(file: str | None) -> str:
    if file is None:
        raise RecipeError("expected one of --url, --domain and --text: what the proof is of")
    folder, name = split(file)
    try:
        return folder.read(name).decode()
    except OSError as error:
        raise RecipeError(f"--text {file} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"--text {file}: expected a text in UTF-8: {error}") from error
