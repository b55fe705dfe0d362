"""What a run keeps in work/ until it is finished, and what a kill leaves of it."""

from __future__ import annotations

from typing import Final

from lineage.storage.folder import Folder
from lineage.storage.lock import LEASE_FILE
from lineage.store.checksum_update import WORK

PLAN: Final = f"{WORK}/plan.json"
"""What the run is a function of: it says whose the other files are."""


def clear_work(out: Folder) -> None:
    """Remove work/, the plan last (and never the lease of who holds the folder, which its holder gives
    back)."""
    if not out.exists(PLAN):
        if not out.is_remote and not out.names("work"):
            out.remove_tree("work")  # a kill after the plan had gone may have left empty folders
        return
    for name in out.names("work"):
        if name not in (PLAN, LEASE_FILE):
            out.remove(name)
    out.sync()  # files of work/ without its plan would be nobody's
    out.remove(PLAN)
    if not out.is_remote:
        out.remove_tree("work")
    out.sync()
